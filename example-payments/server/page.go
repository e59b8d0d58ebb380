package server

import (
	"embed"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/example-payments/payments"
)

//go:embed page
var pageFiles embed.FS

// pagePolicy allows the page its own files and the routes of this server.
const pagePolicy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'none'; frame-ancestors 'none'; base-uri 'none'"

// page sets up the page to try the sample out, and its files.
func (s *Server) page() {
	for path, file := range map[string]struct{ name, mediaType string }{
		"/":                {"page/index.html", "text/html; charset=utf-8"},
		"/assets/page.css": {"page/page.css", "text/css; charset=utf-8"},
		"/assets/page.js":  {"page/page.js", "text/javascript; charset=utf-8"},
		"/assets/icon.svg": {"page/icon.svg", "image/svg+xml"},
	} {
		data, err := pageFiles.ReadFile(file.name)
		if err != nil {
			panic(err) // the folder is embedded
		}
		s.gin.GET(path, func(c *gin.Context) {
			c.Header("Content-Security-Policy", pagePolicy)
			c.Header("X-Content-Type-Options", "nosniff")
			c.Data(http.StatusOK, file.mediaType, data)
		})
	}
}

// crashHeader asks for a crash in the middle of the charge. The fingerprint of a request leaves
// it out, so the same request without it is a repeat.
const crashHeader = "Demo-Crash"

func (s *Server) mayCrash(c *gin.Context) {
	if c.GetHeader(crashHeader) != "" {
		c.Request = c.Request.WithContext(payments.WithCrash(c.Request.Context()))
	}
}
