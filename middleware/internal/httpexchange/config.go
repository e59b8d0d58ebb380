package httpexchange

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/idemkeeper/idemkeeper/idem"
)

// check says what is wrong with the options of a route, and makes the names of
// headers canonical.
func (c *Config) check(policy *idem.Policy) error {
	if c.OptionalKey && policy.Kind == idem.IssuedToken {
		return errors.New("the key is optional on a route for issued tokens: nothing would have to be redeemed")
	}
	if c.Methods != nil && len(c.Methods) == 0 {
		return errors.New("no methods: nothing would be protected")
	}
	for _, m := range c.Methods {
		if !isToken(m) {
			return fmt.Errorf("%q is not a method", m)
		}
		if m != strings.ToUpper(m) { // "post" would protect no request that is ever sent
			return fmt.Errorf("%q is not a method: methods are told apart by case, and %q is one", m, strings.ToUpper(m))
		}
	}
	c.Compare = slices.Clone(c.Compare)
	for i, name := range c.Compare {
		if !isToken(name) {
			return fmt.Errorf("%q is not a header name", name)
		}
		c.Compare[i] = http.CanonicalHeaderKey(name)
	}
	return c.checkDocumentation()
}

// checkDocumentation accepts what can stand in a Link header, and be continued by
// a fragment.
func (c *Config) checkDocumentation() error {
	if c.Documentation == "" {
		return nil
	}
	u, err := url.Parse(c.Documentation)
	switch {
	case err != nil || strings.ContainsAny(c.Documentation, "<>\"\\ #"):
		return fmt.Errorf("%q cannot be the URI of the documentation", c.Documentation)
	case !u.IsAbs() && !strings.HasPrefix(c.Documentation, "/"):
		return fmt.Errorf("the documentation's URI %q is neither absolute nor a path", c.Documentation)
	}
	return nil
}

// protects tells the requests that need a key from those that go straight to the
// handler.
func (x *Exchange) protects(c *Call) bool {
	if !x.cfg.protectsMethod(c.Request.Method) {
		return false
	}
	if x.cfg.OptionalKey && len(c.Request.Header[x.header]) == 0 {
		x.engine.Unprotected(c.Request.Context(), x.policyOf(c.Route).Name)
		return false
	}
	return true
}

// MethodName is a method as the name of a route: "other" for those that clients have
// made up.
func MethodName(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
		http.MethodConnect, http.MethodOptions, http.MethodTrace:
		return method
	}
	return "other"
}

// protectsMethod goes by default by RFC 9110, section 9.2.1: a safe method asks
// for no change.
func (c *Config) protectsMethod(method string) bool {
	if c.Methods != nil {
		return slices.Contains(c.Methods, method)
	}
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, "":
		return false
	}
	return true
}
