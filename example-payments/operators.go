package main

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/idemkeeper/idemkeeper/console"
	"github.com/idemkeeper/idemkeeper/example-payments/ledger"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// operators are the hashes of the passwords of those who may use the console, by name.
type operators map[string][sha256.Size]byte

// localOperators is the default of an instance for trying things out, which has no server and
// listens for this machine only.
const localOperators = "ops=ops"

// parseOperators reads --operators. Its errors show no password.
func parseOperators(list string) (operators, error) {
	if list == "" {
		return nil, nil //nolint:nilnil // nobody may use the console
	}
	out := operators{}
	for i, pair := range strings.Split(list, ",") {
		name, password, ok := strings.Cut(strings.TrimSpace(pair), "=")
		switch _, twice := out[name]; {
		case !ok || name == "" || password == "" || strings.Contains(name, ":"):
			return nil, fmt.Errorf("pair %d is not NAME=PASSWORD", i+1)
		case twice:
			return nil, fmt.Errorf("pair %d repeats the name %q", i+1, name)
		case len(name) > driver.MaxAuthorBytes || !(driver.Decision{By: strings.ToLower(name)}).ByPerson():
			return nil, fmt.Errorf("pair %d: %q is not the name of a person", i+1, name)
		}
		out[name] = sha256.Sum256([]byte(password))
	}
	return out, nil
}

// local reports whether nothing is configured that other processes share.
func (c *Config) local() bool {
	return loopback(c.HTTPAddr) && c.ZooKeeper == "" && c.Redis == "" && c.Database == ""
}

// loopback reports whether an address with or without a port is this machine's own.
func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = strings.Trim(addr, "[]")
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// errRebound is told in the log.
var errRebound = errors.New("the operator " + localOperators + " is for browsers that name this machine by localhost or a loopback address; see --operators")

// authoriseLocal knows the operator of an instance without --operators. The password is in the
// documentation, so the page of any site could use it: its owner lets the site's name lead to
// 127.0.0.1, and the browser then takes this server for the site (DNS rebinding). The browser still
// sends the site's name as Host.
func (o operators) authoriseLocal(r *http.Request) (console.Operator, error) {
	if !loopback(r.Host) {
		return console.Operator{}, errRebound
	}
	return o.authorise(r)
}

// authorise knows an operator by HTTP basic authentication. All operators of the sample may do
// everything. A service of your own asks its single sign-on here.
func (o operators) authorise(r *http.Request) (console.Operator, error) {
	name, password, _ := r.BasicAuth()
	want, known := o[name]
	got := sha256.Sum256([]byte(password))
	if subtle.ConstantTimeCompare(got[:], want[:]) != 1 || !known {
		return console.Operator{}, console.ErrUnauthorised
	}
	return console.Operator{Name: name, MaySettle: true, MaySeeResponses: true}, nil
}

// lookUp finds what an operation has paid, for any merchant. The answer is that of the handler.
func (a *App) lookUp(ctx context.Context, route, operationID string) (console.Found, error) {
	made, err := a.ledger.MadeBy(ctx, operationID)
	if err != nil {
		a.log.WarnContext(ctx, "look-up for an operator", "op", operationID, "err", err) // the page must not have addresses
		return console.Found{}, errors.New("the ledger does not answer")
	}
	if len(made) == 0 {
		// Another instance may have a ledger of its own with the payment.
		return console.Found{Nothing: !a.cfg.ledgerIsPrivate()}, nil
	}
	return found(route, made)
}

// found tells what an operation has paid.
func found(route string, made []ledger.Made) (f console.Found, err error) {
	says := make([]string, len(made))
	for i, m := range made {
		says[i] = fmt.Sprintf("%s: %d.%02d %s from %s to %s, of %s", m.ID, m.Amount/100, m.Amount%100, m.Currency, m.From, m.To, m.Merchant)
	}
	f.Says = strings.Join(says, " and ")
	if len(made) > 1 { // the middleware is broken, and a person chooses
		f.Hint = "one of these payments as body. Refund the others first"
		return f, nil
	}
	f.Answer, err = answer(route, made[0].Payment)
	return f, err
}

// makeConsole makes the operator's page, unless there are no operators.
func (a *App) makeConsole() (handler http.Handler, err error) {
	if len(a.cfg.Operators) == 0 {
		return nil, nil //nolint:nilnil // the console is off
	}
	authorise := a.cfg.Operators.authorise
	if a.cfg.LocalOperators {
		authorise = a.cfg.Operators.authoriseLocal
	}
	a.console, err = console.New(a.engine, authorise, console.Config{Service: "payments", Home: "/", Logger: a.log,
		Policies:  []idem.Policy{a.policy},
		ScopeHint: "the merchant, such as merchant_demo", LookUp: a.lookUp, Idemctl: a.cfg.TokenStore == storeRedis || a.cfg.TokenStore == storeSQL && a.cfg.Database != "",
		TokenKey: a.cfg.ConsoleTokenKey, Challenge: `Basic realm="console", charset="UTF-8"`})
	if err != nil {
		return nil, err
	}
	return http.StripPrefix("/console", a.console), nil
}
