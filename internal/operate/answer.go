package operate

import (
	"encoding/json"
	"fmt"
	"mime"
	"strings"
)

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
