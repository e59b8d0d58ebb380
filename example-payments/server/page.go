package server

import (
	"bytes"
	"embed"
	"html/template"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	"github.com/idemkeeper/idemkeeper/idem"
)

//go:embed page
var pageFiles embed.FS

var pageTemplates = template.Must(template.ParseFS(pageFiles, "page/*.html"))

// pagePolicy allows the pages their own files and the routes of this server.
const pagePolicy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'none'; frame-ancestors 'none'; base-uri 'none'"

// pages sets up two pages and their files. One is to try the sample out. The other tells clients
// how to use keys, how long they are kept, and what each refusal means
// (draft-ietf-httpapi-idempotency-key-header-07, sections 2.5.2 and 2.7, which expired on 2026-04-18).
func (s *Server) pages() {
	data := struct {
		Crashes                    bool // a charge may end the process
		Console                    bool
		Codes                      []idem.Code
		ResultHours, KeyDays, Mins int
	}{s.cfg.Service.Crash != nil, s.cfg.Console != nil,
		describedCodes, int(idem.DefaultResultTTL / time.Hour), int(idem.DefaultKeyTTL / (24 * time.Hour)), int(idem.DefaultTokenTTL / time.Minute)}
	for path, name := range map[string]string{"/": "index.html", documentation: "keys.html"} {
		var b bytes.Buffer
		if err := pageTemplates.ExecuteTemplate(&b, name, data); err != nil {
			panic(err) // the templates are embedded
		}
		s.file(path, "text/html; charset=utf-8", b.Bytes())
	}
	for name, mediaType := range map[string]string{"page.css": "text/css; charset=utf-8", "page.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml"} {
		data, err := pageFiles.ReadFile("page/" + name)
		if err != nil {
			panic(err) // the folder is embedded
		}
		s.file("/assets/"+name, mediaType, data)
	}
}

// file serves a file of the pages.
func (s *Server) file(path, mediaType string, data []byte) {
	s.get(path, func(c *gin.Context) {
		c.Header("Content-Security-Policy", pagePolicy)
		c.Header("X-Content-Type-Options", "nosniff")
		c.Data(http.StatusOK, mediaType, data)
	})
}

// crashHeader asks for a crash in the middle of the charge. The fingerprint of a request leaves
// it out, so the same request without it is a repeat.
const crashHeader = "Demo-Crash"

func (s *Server) mayCrash(c *gin.Context) {
	if c.GetHeader(crashHeader) != "" {
		c.Request = c.Request.WithContext(payments.WithCrash(c.Request.Context()))
	}
}
