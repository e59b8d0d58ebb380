package idemgin

import (
	"reflect"
	"runtime"
	"slices"

	"github.com/gin-gonic/gin"
)

// rerun is about running the last handler of a chain again. Each run gets a context with nothing
// of what the earlier ones have left in theirs, such as Gin's caches of query and form, which
// only a copy has empty.
type rerun struct {
	gin    *gin.Context
	own    gin.HandlerFunc // the middleware
	before *gin.Context    // copy from before the first run
	errors []*gin.Error
}

func newRerun(c *gin.Context, own gin.HandlerFunc) *rerun {
	return &rerun{gin: c, own: own, before: c.Copy(), errors: slices.Clone(c.Errors)}
}

// again returns the context and the function of another run.
func (x *rerun) again() (run *gin.Context, handle func()) {
	run = x.before.Copy()
	if !x.adjacent() { // the handler needs what the middleware between has set in the first run
		run.Keys = x.gin.Copy().Keys
	}
	run.Errors = slices.Clone(x.errors)
	run.Next() // it runs nothing, and moves the index on from where Abort puts it
	handler := x.gin.Handler()
	return run, func() { handler(run) }
}

// aborted reports whether the handlers of c have aborted the chain. The copy of a context is aborted
// from the start, so there the index tells, which Abort puts back.
func aborted(c *gin.Context, rerun bool) bool {
	index := reflect.ValueOf(c).Elem().FieldByName("index")
	if !rerun || !index.IsValid() || !index.CanInt() {
		return c.IsAborted()
	}
	return index.Int() == reflect.ValueOf(c.Copy()).Elem().FieldByName("index").Int()
}

// keep leaves what a run has set to the middleware outside.
func (x *rerun) keep(run *gin.Context) {
	x.gin.Keys, x.gin.Errors, x.gin.Accepted = run.Keys, run.Errors, run.Accepted
}

// adjacent reports whether the middleware is right in front of the last handler.
func (x *rerun) adjacent() bool {
	names, own := x.gin.HandlerNames(), runtime.FuncForPC(reflect.ValueOf(x.own).Pointer()).Name()
	return len(names) > 1 && names[len(names)-2] == own
}
