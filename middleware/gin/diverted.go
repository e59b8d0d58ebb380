package idemgin

import (
	"bufio"
	"errors"
	"net"
	"net/http"
	"reflect"

	"github.com/gin-gonic/gin"
)

// This file is about [gin.Engine.HandleContext]. It puts Gin's own writer back into the context, so
// that the response of its target would reach the client past this middleware, and before the
// outcome is settled. While the handlers run, Gin's own writer therefore writes to the response
// that this middleware keeps.

// diversion is Gin's own writer of a context while it is diverted.
type diversion struct {
	own    reflect.Value // the struct
	before reflect.Value // a copy of it
}

// divert makes Gin's own writer of c write to inner.
func divert(c *gin.Context, inner *writer) *diversion {
	own := ownWriter(c)
	to := own.FieldByName(embedded)
	sends, _ := reflect.TypeAssert[http.ResponseWriter](to)
	if sends == nil { // in a copy of a context, which HandleContext cannot take
		return nil
	}
	d := &diversion{own: own, before: reflect.New(own.Type()).Elem()}
	d.before.Set(own)
	to.Set(reflect.ValueOf(&diverted{inner, sends}))
	return d
}

// end puts Gin's own writer back as it was. Only the first call has an effect.
func (d *diversion) end() {
	if d != nil && d.before.IsValid() {
		d.own.Set(d.before)
		d.before = reflect.Value{}
	}
}

// These are names in Gin. It offers no other way to its own writer once middleware outside has put
// another one around it.
const (
	ownField = "writermem"      // of [gin.Context], the writer
	embedded = "ResponseWriter" // of the writer, what it writes to
)

var errForeignGin = errors.New("this version of Gin is not known: HandleContext would send a response before its outcome is settled")

// checkGin returns an error if Gin's own writer cannot be diverted.
func checkGin() error {
	own, ok := reflect.TypeFor[gin.Context]().FieldByName(ownField)
	if ok && own.Type.Kind() == reflect.Struct && reflect.PointerTo(own.Type).Implements(reflect.TypeFor[gin.ResponseWriter]()) {
		if to, ok := own.Type.FieldByName(embedded); ok && to.Type == reflect.TypeFor[http.ResponseWriter]() {
			return nil
		}
	}
	return errForeignGin
}

// ownWriter returns Gin's own writer of c, a struct that can be set.
func ownWriter(c *gin.Context) reflect.Value {
	own := reflect.ValueOf(c).Elem().FieldByName(ownField)
	return reflect.NewAt(own.Type(), own.Addr().UnsafePointer()).Elem()
}

// diverted is what Gin's own writer writes to. It has no more methods than Gin calls and
// [http.ResponseController] looks for. Others are those of the connection.
type diverted struct {
	inner *writer
	sends http.ResponseWriter // what Gin's own writer wrote to before
}

var (
	_ http.Flusher  = (*diverted)(nil)
	_ http.Hijacker = (*diverted)(nil)
	//nolint:staticcheck // Gin asks for it
	_ http.CloseNotifier = (*diverted)(nil)
)

func (d *diverted) Unwrap() http.ResponseWriter { return d.sends }
func (d *diverted) Header() http.Header         { return d.inner.Header() }

// WriteHeader fixes status and headers, because Gin's own writer has noted the status before.
func (d *diverted) WriteHeader(status int) {
	d.inner.Whole()
	if d.inner.WriteHeader(status); status >= 200 || status == http.StatusSwitchingProtocols {
		d.inner.WriteHeaderNow()
	}
}

func (d *diverted) Write(p []byte) (int, error) {
	d.inner.Whole()
	return d.inner.Write(p)
}

func (d *diverted) Flush()                                       { d.inner.Flush() }
func (d *diverted) Hijack() (net.Conn, *bufio.ReadWriter, error) { return d.inner.Hijack() }

func (d *diverted) CloseNotify() <-chan bool {
	//nolint:staticcheck // Gin asks for it
	return d.sends.(http.CloseNotifier).CloseNotify()
}
