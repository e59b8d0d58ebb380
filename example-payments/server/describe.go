package server

import (
	"bytes"
	_ "embed"
	"html/template"
	"net/http"
	"slices"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
)

// documentation is the page that refusals point to. Its fragments are the codes.
const documentation = "/docs/idempotency"

//go:embed describe.html
var describeText string

// describedCodes are those that have to do with keys, in the order of the page.
var describedCodes = []idem.Code{
	idem.CodeKeyMissing, idem.CodeKeyInvalid, idem.CodeBodyInvalid, idem.CodeBodyTooLarge, idem.CodeTokenUnknown, idem.CodeInProgress,
	idem.CodeTooManyOpen, idem.CodeKeyReused, idem.CodeOutcomeUnknown, idem.CodeKeyExpired, idem.CodeResultUnavailable,
	idem.CodeOwnershipLost, idem.CodeUnavailable, idem.CodeStoreLost,
}

func documented(code string) bool { return slices.Contains(describedCodes, idem.Code(code)) }

// description is the page. It says what the policies of the routes do.
var description = func() []byte {
	var b bytes.Buffer
	page := template.Must(template.New("keys").Parse(describeText))
	err := page.Execute(&b, struct {
		Codes                      []idem.Code
		ResultHours, KeyDays, Mins int
	}{describedCodes, int(idem.DefaultResultTTL / time.Hour), int(idem.DefaultKeyTTL / (24 * time.Hour)), int(idem.DefaultTokenTTL / time.Minute)})
	if err != nil {
		panic(err)
	}
	return b.Bytes()
}()

// describeKeys tells clients how to use keys, for how long they are kept, and what
// each refusal means (draft-ietf-httpapi-idempotency-key-header-07, sections 2.5.2
// and 2.7).
func (s *Server) describeKeys(c *gin.Context) {
	c.Header("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	c.Data(http.StatusOK, "text/html; charset=utf-8", description)
}
