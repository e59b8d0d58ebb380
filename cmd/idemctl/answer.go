package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/idemkeeper/idemkeeper/idem"
)

// maxAnswer bounds FILE, in bytes.
const maxAnswer = 16 << 20

// answer is the response in FILE, of whatever transport.
type answer struct {
	status      int
	headers     map[string][]string
	text        *string // body
	bytes       []byte  // body_base64
	binary      bool    // it was given
	messageType string  // of a gRPC message
}

// readAnswer reads FILE, or standard input.
func (a *app) readAnswer(file string) (*answer, error) {
	var in io.Reader = strings.NewReader("")
	switch {
	case file != "-":
		f, err := os.Open(file) //nolint:gosec // whoever runs it names the file
		if err != nil {
			return nil, usageError{fmt.Errorf("--applied: %w", err)}
		}
		defer func() { _ = f.Close() }()
		in = f
	case a.stdin != nil:
		in = a.stdin
	}
	data, err := io.ReadAll(io.LimitReader(in, maxAnswer+1))
	if err != nil {
		return nil, usageError{fmt.Errorf("--applied: %w", err)}
	}
	if len(data) > maxAnswer {
		return nil, wrongUse("--applied: more than %d bytes", maxAnswer)
	}
	ans, err := parseAnswer(data)
	if err != nil {
		return nil, usageError{fmt.Errorf("--applied: %w", err)}
	}
	return ans, nil
}

// parseAnswer reads one JSON object. Names are exact, and are not repeated: what
// is misspelled would otherwise be missing from every replay.
func parseAnswer(data []byte) (*answer, error) {
	if !utf8.Valid(data) {
		return nil, errors.New("not UTF-8; a body that is no text goes into body_base64")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.New(`not a JSON object such as {"status":201,"body":"…"}`)
	}
	ans, seen := &answer{}, map[string]bool{}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return nil, fmt.Errorf("not JSON: %w", err)
		}
		name, _ := t.(string)
		if seen[name] {
			return nil, fmt.Errorf("%q is there twice", name)
		}
		seen[name] = true
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, fmt.Errorf("not JSON: %w", err)
		}
		if err := ans.set(name, value); err != nil {
			return nil, err
		}
	}
	if _, err := dec.Token(); err != nil {
		return nil, fmt.Errorf("not JSON: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the JSON object")
	}
	switch {
	case !seen["status"]:
		return nil, errors.New("no status")
	case ans.text != nil && ans.binary:
		return nil, errors.New("both body and body_base64")
	}
	return ans, nil
}

// set takes one member.
func (ans *answer) set(name string, value json.RawMessage) (err error) {
	var want string
	switch name {
	case "status":
		want, err = "a whole number", strictly(value, &ans.status)
	case "headers":
		want, err = "an object of lists of texts", strictly(value, &ans.headers)
	case "body":
		want, err = "a text", strictly(value, &ans.text)
	case "body_base64":
		var text string
		want, err = "a text in base64 (RFC 4648, section 4)", strictly(value, &text)
		if err == nil {
			ans.bytes, err = base64.StdEncoding.DecodeString(text)
		}
		ans.binary = true
	case "message_type":
		want, err = "a text", strictly(value, &ans.messageType)
	default:
		return fmt.Errorf("unknown member %q: there are status, headers, body, body_base64 and message_type", name)
	}
	if err != nil {
		return fmt.Errorf("%s is not %s", name, want)
	}
	return nil
}

// strictly decodes a value, which is not null.
func strictly(value json.RawMessage, to any) error {
	if string(value) == "null" {
		return errors.New("null")
	}
	return json.Unmarshal(value, to)
}

// response is what is stored for a route.
func (ans *answer) response(route string, allow []string) (idem.Response, error) {
	if strings.HasPrefix(route, "/") {
		return ans.overGRPC(allow)
	}
	return ans.overHTTP(allow)
}

// What is replayed (idem's design, section 6), unless the service was told to
// replay more.
var (
	replayedHTTP = []string{"Content-Disposition", "Content-Encoding", "Content-Language", "Content-Type", "Etag", "Location"}
	replayedGRPC = []string{"content-language", "etag", "location"}
)

// neverReplayed belongs to one exchange or one caller, whatever a service says.
var neverReplayed = []string{
	"Authentication-Info", "Authorization", "Connection", "Content-Length", "Cookie", "Date", "Idempotent-Replayed", "Keep-Alive",
	"Proxy-Authenticate", "Proxy-Authentication-Info", "Proxy-Authorization", "Proxy-Connection", "Set-Cookie",
	"Set-Cookie2", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Www-Authenticate",
}

func (ans *answer) overHTTP(allow []string) (idem.Response, error) {
	if ans.status < 200 || ans.status > 599 {
		return idem.Response{}, fmt.Errorf("status %d: want an HTTP status from 200 to 599", ans.status)
	}
	if ans.messageType != "" {
		return idem.Response{}, errors.New("message_type is for gRPC, and the record's route is not")
	}
	body := ans.bytes
	if ans.text != nil {
		body = []byte(*ans.text)
	}
	if len(body) > 0 && (ans.status == http.StatusNoContent || ans.status == http.StatusNotModified) {
		return idem.Response{}, fmt.Errorf("status %d has no body", ans.status)
	}
	header, err := ans.fields(replayedHTTP, allow, http.CanonicalHeaderKey)
	return idem.Response{Status: ans.status, Header: header, Body: body}, err
}

// fields are the headers in their stored form.
func (ans *answer) fields(replayed, allow []string, canonical func(string) string) (map[string][]string, error) {
	known := slices.Clone(replayed)
	for _, name := range allow {
		known = append(known, canonical(name))
	}
	fields := make(map[string][]string, len(ans.headers))
	for given, values := range ans.headers {
		name := canonical(given)
		switch _, twice := fields[name]; {
		case slices.Contains(neverReplayed, http.CanonicalHeaderKey(given)):
			return nil, fmt.Errorf("header %s belongs to one exchange, and is never replayed", oneLine(given))
		case !slices.Contains(known, name):
			return nil, fmt.Errorf("header %q is not among those that are replayed: %s; see --allow-header", given, strings.Join(known, ", "))
		case twice:
			return nil, fmt.Errorf("header %s is there twice", name)
		case len(values) == 0:
			return nil, fmt.Errorf("header %s has no value", name)
		}
		for _, v := range values {
			if strings.ContainsFunc(v, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
				return nil, fmt.Errorf("header %s has a control character in its value", name)
			}
		}
		fields[name] = values
	}
	return fields, nil
}
