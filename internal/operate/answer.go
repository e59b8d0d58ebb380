package operate

import (
	"encoding/json"
	"fmt"
	"mime"
	"strings"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// KeepsAnswer reports whether a record has a whole answer.
func KeepsAnswer(rec *driver.Record) bool { return rec.Response != nil && !rec.Response.Omitted }

// KeepsSuccess reports whether a record has a whole answer that tells a client that its request took
// effect. Over gRPC that is code 0. A client that gets anything else may pay with a new key.
func KeepsSuccess(rec *driver.Record) bool {
	if !KeepsAnswer(rec) {
		return false
	}
	over, status := Likely(rec.Route), rec.Response.Status
	return over != OverGRPC && TookEffect(status) || over != OverHTTP && status == 0
}

// TookEffect reports whether a status of HTTP tells a client that its request took effect.
func TookEffect(status int) bool { return status >= 200 && status < 400 }

// CheckJSON says what is wrong with a body that is JSON by its Content-Type. Clients would get the
// body as it is, for as long as the answer is kept.
func CheckJSON(contentType string, body []byte) error {
	media, _, err := mime.ParseMediaType(contentType)
	if err != nil || media != "application/json" && !strings.HasSuffix(media, "+json") {
		return nil //nolint:nilerr // the type is checked elsewhere
	}
	var v any
	if err := json.Unmarshal(body, &v); err != nil {
		return fmt.Errorf("the body is not JSON, though its Content-Type says so: %w", err)
	}
	return nil
}
