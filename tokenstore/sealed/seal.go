package sealed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// Marker is the header field of sealed responses. It is on no adapter's allow-list, so a
// plain response does not have it.
const Marker = "idemkeeper-sealed"

const (
	version = 1
	purpose = "idemkeeper sealed response"
	sealing = 12 + 16 // length of nonce and tag
)

// ErrUnreadable says that a stored response cannot be opened.
var ErrUnreadable = errors.New("tokenstore/sealed: response cannot be opened")

// place is the key and the attempt of a response. A response opens at its own place only.
type place struct {
	id      driver.KeyID
	attempt driver.Attempt
}

// seal returns the sealed form of a response, or the response itself if it has no content.
// The error is that of AppendBinary.
func (r *Ring) seal(at place, resp *driver.Response) (*driver.Response, error) {
	if bare(resp) {
		return resp, nil
	}
	plain, err := resp.AppendBinary(make([]byte, 0, 256+len(resp.Body)))
	if err != nil {
		return nil, err
	}
	k := &r.keys[0]
	body := make([]byte, 0, 2+len(k.id)+len(plain)+sealing)
	body = append(body, version, byte(len(k.id)))
	body = append(body, k.id...)
	body = k.aead.Seal(body, nil, plain, at.bind(k.id, resp.Status)) //nolint:gosec // G407: this AEAD makes its own nonces
	return &driver.Response{Status: resp.Status, Header: map[string][]string{Marker: {""}}, Body: body, Omitted: true}, nil
}

// bare reports whether a response has a status only.
func bare(r *driver.Response) bool {
	return r.Omitted && len(r.Header) == 0 && len(r.Trailer) == 0 && len(r.Body) == 0
}

// marked reports whether a response claims to be sealed.
func marked(r *driver.Response) bool {
	_, ok := r.Header[Marker]
	return ok
}

// open returns the response in a sealed form. The error wraps ErrUnreadable.
func (r *Ring) open(at place, sealed *driver.Response) (*driver.Response, error) {
	// The form is exact, because any other field would not be authenticated.
	if !sealed.Omitted || len(sealed.Trailer) > 0 || len(sealed.Header) != 1 || !slices.Equal(sealed.Header[Marker], []string{""}) {
		return nil, fmt.Errorf("%w: it is malformed", ErrUnreadable)
	}
	rest := sealed.Body
	if len(rest) < 2 {
		return nil, fmt.Errorf("%w: it is cut off", ErrUnreadable)
	}
	if rest[0] != version {
		return nil, fmt.Errorf("%w: it is of version %d", ErrUnreadable, rest[0])
	}
	n := int(rest[1])
	if rest = rest[2:]; n > len(rest) || !validID(string(rest[:n])) {
		return nil, fmt.Errorf("%w: it is malformed", ErrUnreadable)
	}
	id := string(rest[:n])
	k := r.find(id)
	if k == nil {
		return nil, fmt.Errorf("%w: ring key %q is not in the ring", ErrUnreadable, id)
	}
	plain, err := k.aead.Open(nil, nil, rest[n:], at.bind(id, sealed.Status))
	if err != nil {
		return nil, fmt.Errorf("%w: it was changed, it belongs to another key or attempt, or another ring key %q sealed it", ErrUnreadable, id)
	}
	resp := new(driver.Response)
	if err := resp.UnmarshalBinary(plain); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	return resp, nil
}

// bind returns the data that is authenticated with the response. Each part has a fixed
// length or its length in front.
func (p place) bind(ringKey string, status int) []byte {
	a := &p.attempt
	buf := make([]byte, 0, 256)
	buf = append(buf, purpose...)
	buf = append(buf, version, byte(len(ringKey)))
	buf = append(buf, ringKey...)
	buf = append(buf, p.id[:]...)
	buf = binary.BigEndian.AppendUint32(buf, a.Number)
	buf = binary.BigEndian.AppendUint64(buf, a.Fence.Token)
	buf = append(buf, a.Nonce[:]...)
	buf = binary.BigEndian.AppendUint64(buf, uint64(int64(status)))
	return append(buf, a.Fence.Domain...)
}
