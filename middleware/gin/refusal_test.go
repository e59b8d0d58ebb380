package idemgin_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
)

func TestWriteRefusalEndsTheChain(t *testing.T) {
	t.Parallel()
	h := router(func(c *gin.Context) {
		idemgin.WriteRefusal(c, idem.Refuse(idem.CodeKeyReused, nil), idemgin.WithDocumentation("/keys"))
	}, func(*gin.Context) { t.Error("the next handler ran") })
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", nil))
	if body := w.Body.String(); w.Code != 422 || !strings.Contains(body, `"type":"/keys#key-reused"`) ||
		w.Header().Get("Link") != `</keys#key-reused>; rel="describedby"; type="text/html"` {
		t.Errorf("WriteRefusal() = %d %v %s", w.Code, w.Header(), body)
	}
}
