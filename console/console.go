package console

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/operate"
	"github.com/idemkeeper/idemkeeper/internal/routes"
)

// Operator is the person behind a request.
type Operator struct {
	// Name is kept with every decision of the operator. It has 1 to 128 bytes, and is never the
	// name of a part of the services, such as "resolver".
	Name string
	// MaySettle lets the operator settle outcomes in doubt. Without it the console is
	// read-only.
	MaySettle bool
	// MaySeeResponses shows the bodies and header values of stored responses. They are what a
	// client got, so they may hold personal data.
	MaySeeResponses bool
}

// Authorise names the operator behind a request, or refuses it. [ErrUnauthorised] is answered with
// 401, and any other error with 403. It is called for every request, with a path relative to the
// console. It must be safe for concurrent use. [BasicAuth] makes one.
type Authorise = func(*http.Request) (Operator, error)

// ErrUnauthorised is for an [Authorise]. The console answers 401, and asks the browser for
// credentials if Config.Challenge is set.
var ErrUnauthorised = errors.New("console: not authorised")

// Config holds what a service may add to its console. The zero value is safe, and is the default.
type Config struct {
	// Policies are those of the routes, as for the sweeper. The Name of each is its route, and one
	// without a Name is for all other routes. The console tells by them what happens next. Without
	// them results and keys are kept for as long as the record says, or for the defaults if that is
	// longer.
	Policies []idem.Policy
	// Challenge is the WWW-Authenticate header of a 401. By default there is none, except with
	// [BasicAuth].
	Challenge string
	// Service is the name in the title of each page. It may be empty.
	Service string
	// Home is a link on each page that leads back to the service, such as "/". By default there is none.
	Home string
	// TokenKey makes the tokens of forms. Instances behind one address share a key of at least
	// 32 random bytes. By default each instance makes its own.
	TokenKey []byte
	// ScopeHint says what a scope is in this service, beside the field for it, such as "the
	// merchant, such as merchant_demo".
	ScopeHint string
	// LookUp finds out what an operation did, in the systems that the route calls. The console asks
	// when it shows the form to an operator who may settle, and once more before it settles that
	// nothing took effect. ctx ends after 5 seconds. An error is shown to the operator, so it must
	// not have secrets. LookUp changes nothing, and is safe for concurrent use. It may be nil.
	LookUp func(ctx context.Context, route, operationID string) (Found, error)
	// NoLookUpInList keeps LookUp out of lists. By default a list of outcomes in doubt asks about each of
	// its up to 25 operations, eight at a time and for at most 2 seconds.
	NoLookUpInList bool
	// Idemctl says that idemctl can reach the store. Pages then have its commands.
	Idemctl bool
	// Checks are further lines in the strip of health, such as a database or replicas.
	Checks []Check
	// Logger gets the errors of servers, and every decision. The default is slog.Default().
	Logger *slog.Logger
}

// Console is the operator's page. It is safe for concurrent use. Make it with [New].
type Console struct {
	engine *idem.Engine
	store  driver.Store
	cfg    Config
	look   operate.Looker
	guard  *guard
	events journal
	strip  strip
	sweeps sweeps
	mux    *http.ServeMux

	signOuts signOuts

	lookUps       chan struct{} // one for each that runs for a single record
	lookUpsOfMany chan struct{} // and for one of many

	selections selections
	runs       runs
}

// MustNew is [New] for known-good wiring. Like [regexp.MustCompile] it panics where New returns an
// error.
func MustNew(engine *idem.Engine, authorise Authorise, cfg ...Config) *Console {
	c, err := New(engine, authorise, cfg...)
	if err != nil {
		panic(err)
	}
	return c
}

// New returns a console, to be mounted under any path with http.StripPrefix. The engine settles
// outcomes, and tells about locks if its locker is an [driver.LockInspector]. If its store is an
// [driver.StoreInspector], the console shows earlier decisions, and finds settled records by operation
// ID. authorise sees every request. cfg may be left out, and there is at most one. The error is for
// wrong wiring, such as no authorise.
func New(engine *idem.Engine, authorise Authorise, cfg ...Config) (*Console, error) {
	if len(cfg) > 1 {
		return nil, errors.New("console: New takes at most one Config")
	}
	return newConsole(engine, authorise, append(slices.Clip(cfg), Config{})[0])
}

func newConsole(engine *idem.Engine, authorise Authorise, cfg Config) (*Console, error) {
	switch {
	case authorise == nil:
		return nil, errors.New("console: New needs an Authorise: without it everybody could settle payments")
	case engine == nil:
		return nil, errors.New("console: New needs an engine")
	case cfg.TokenKey != nil && len(cfg.TokenKey) < 32:
		return nil, errors.New("console: Config.TokenKey is shorter than 32 bytes")
	}
	for _, check := range cfg.Checks {
		if check.Look == nil {
			return nil, fmt.Errorf("console: Config.Checks: %q has no Look", check.Name)
		}
	}
	policies, err := routes.New(cfg.Policies)
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	if cfg.TokenKey == nil {
		cfg.TokenKey = make([]byte, 32)
		_, _ = rand.Read(cfg.TokenKey) // never fails (crypto/rand, since Go 1.24)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	c := &Console{engine: engine, store: engine.Store(), cfg: cfg, guard: newGuard(&cfg, authorise), mux: http.NewServeMux(), lookUps: make(chan struct{}, mostLookUps),
		lookUpsOfMany: make(chan struct{}, mostLookUps)}
	c.look = operate.Looker{Store: c.store, Policies: policies.Of, Locks: func(*driver.Record) driver.LockInspector { return engine }}
	c.strip.console, c.events.most = c, mostEvents
	c.mux.HandleFunc("GET /{$}", c.inbox)
	c.mux.HandleFunc("POST /find", c.find)
	c.mux.HandleFunc("GET /find", func(w http.ResponseWriter, r *http.Request) { seeOther(w, root(r)) })
	c.mux.HandleFunc("POST "+signOutPath, c.signOut)
	c.mux.HandleFunc("GET "+signOutPath, func(w http.ResponseWriter, r *http.Request) { seeOther(w, root(r)) })
	c.mux.HandleFunc("GET /key/{id}", c.story)
	c.mux.HandleFunc("POST /key/{id}/settle", c.settle)
	c.mux.HandleFunc("POST /select", c.choose)
	c.mux.HandleFunc("GET /select", func(w http.ResponseWriter, r *http.Request) { seeOther(w, root(r)) })
	c.mux.HandleFunc("GET /select/{id}", c.chosen)
	c.mux.HandleFunc("POST /select/{id}/settle", c.settleChosen)
	c.mux.HandleFunc("GET /runs", c.listRuns)
	c.mux.HandleFunc("GET /runs/{id}", c.showRun)
	c.mux.HandleFunc("POST /runs/{id}/stop", c.stopRun)
	c.mux.HandleFunc("GET /runs/{id}/results.csv", c.resultsOfRun)
	c.mux.HandleFunc("GET /health", c.health)
	c.mux.Handle("GET /assets/", assetHandler())
	c.mux.HandleFunc("/assets", c.noPage) // or the mux redirects
	c.mux.HandleFunc("/", c.noPage)
	return c, nil
}

// Close stops a run over many records and waits until the decisions that are under way have ended, or until ctx
// ends. A service calls it before it closes its engine. Without it the run ends with the process: what was settled
// stays settled, and the rest stays in doubt.
func (c *Console) Close(ctx context.Context) error { return c.runs.close(ctx) }

func (c *Console) noPage(w http.ResponseWriter, r *http.Request) {
	c.fail(w, r, http.StatusNotFound, "There is no such page.")
}

// serve answers a request below the console's root. A mux redirects a path such as "//" to "/", and knows
// nothing of where the console is mounted. So the redirect would lead out of the console.
func (c *Console) serve(w http.ResponseWriter, r *http.Request) {
	clean := path.Clean(r.URL.Path)
	if strings.HasSuffix(r.URL.Path, "/") && clean != "/" {
		clean += "/"
	}
	if clean != r.URL.Path {
		c.noPage(w, r)
		return
	}
	c.mux.ServeHTTP(w, r)
}

// ServeHTTP serves a page to an operator. It refuses everybody else.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "" { // mounted without the slash
		mount, _, _ := strings.Cut(r.RequestURI, "?")
		http.Redirect(w, r, mount+"/", http.StatusSeeOther) //nolint:gosec // the mount has matched the whole path
		return
	}
	c.guard.serve(w, r, c.serve, c.refuse)
}
