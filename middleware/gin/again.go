package idemgin

import (
	"errors"
	"reflect"
	"slices"

	"github.com/gin-gonic/gin"
)

// This file is about running a handler again, after its joined transaction met a conflict
// ([idem.WithConflictRetries]). Gin cannot run a chain twice, so it is only possible where nothing
// but the handler comes after this middleware.

// These name in [gin.Context] the chain of handlers and the place of the running one.
const (
	chainField = "handlers"
	indexField = "index"
)

// beforeLast reports whether the running middleware is right in front of the last handler of the
// chain. In a version of Gin that is not known it is false.
func beforeLast(c *gin.Context) bool {
	index, chain := reflect.ValueOf(c).Elem().FieldByName(indexField), reflect.ValueOf(c).Elem().FieldByName(chainField)
	return chain.IsValid() && chain.Kind() == reflect.Slice && index.IsValid() && index.CanInt() && int(index.Int()) == chain.Len()-2
}

// firstRun is what later runs of the handler need of the first one. Each run gets a context with
// nothing of what the earlier ones have left in theirs, such as Gin's caches of query and form,
// which only a copy has empty.
type firstRun struct {
	gin    *gin.Context
	before *gin.Context // copy from before the run
	errors []*gin.Error
	gone   bool // the handler has used HandleContext, which a copy cannot
}

var errHandleContext = errors.New("idemgin: a handler that calls Engine.HandleContext cannot run again after a conflict")

func newFirstRun(c *gin.Context) *firstRun {
	return &firstRun{gin: c, before: c.Copy(), errors: slices.Clone(c.Errors)}
}

// again returns the context and the function of another run.
func (x *firstRun) again() (run *gin.Context, handle func()) {
	run = x.before.Copy()
	run.Errors = slices.Clone(x.errors)
	x.gin.Errors = slices.Clone(x.errors)
	run.Next() // it runs nothing, and moves the index on from where Abort puts it
	handler := x.gin.Handler()
	return run, func() { handler(run) }
}

// adopt takes over the errors that the handler has reported in the first context.
func (x *firstRun) adopt(run *gin.Context) {
	run.Errors = append(run.Errors, x.gin.Errors[min(len(x.errors), len(x.gin.Errors)):]...)
}

// keep leaves what a run has set to the middleware outside.
func (x *firstRun) keep(run *gin.Context) {
	x.gin.Keys, x.gin.Errors, x.gin.Accepted = run.Keys, run.Errors, run.Accepted
}

// aborted reports whether the handlers of c have aborted the chain. The copy of a context is aborted
// from the start, so there the index tells, which Abort puts back.
func aborted(c *gin.Context, again bool) bool {
	index := reflect.ValueOf(c).Elem().FieldByName(indexField)
	if !again || !index.IsValid() || !index.CanInt() {
		return c.IsAborted()
	}
	return index.Int() == reflect.ValueOf(c.Copy()).Elem().FieldByName(indexField).Int()
}
