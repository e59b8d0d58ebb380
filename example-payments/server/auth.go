package server

import (
	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/example-payments/auth"
)

// merchantOf is for handlers behind authenticate.
func merchantOf(c *gin.Context) string { return auth.MerchantOf(c.Request.Context()) }

// authenticate lets requests with a known API key through and leaves the
// merchant in their context.
func (s *Server) authenticate(c *gin.Context) {
	merchant, ok := s.cfg.Keys.Merchant(c.Request.Header.Values("Authorization"))
	if !ok {
		c.Header("WWW-Authenticate", `Bearer realm="payments"`)
		abort(c, codeUnauthorized, "Send Authorization: Bearer and a known API key.")
		return
	}
	c.Request = c.Request.WithContext(auth.NewContext(c.Request.Context(), merchant))
}
