package console

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"html/template"
	"io/fs"
	"net/http"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

//go:embed pages/*.html
var pageFiles embed.FS

//go:embed assets
var assetFiles embed.FS

// templates are the pages by name, each with the layout around it.
var templates = func() map[string]*template.Template {
	set := make(map[string]*template.Template)
	for _, name := range []string{"inbox", "story", "health", "error", "select", "runs", "run"} {
		set[name] = template.Must(template.ParseFS(pageFiles, "pages/layout.html", "pages/"+name+".html"))
	}
	return set
}()

// assetHandler serves the style sheet and the script.
func assetHandler() http.Handler {
	files, err := fs.Sub(assetFiles, "assets")
	if err != nil {
		panic(err) // the folder is embedded
	}
	serve := http.StripPrefix("/assets/", http.FileServerFS(files))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/") {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Cache-Control", "private, max-age=300")
		serve.ServeHTTP(w, r)
	})
}

// page is what every page has.
type page struct {
	Title    string
	Service  string
	Home     string // link to the service
	Root     string // relative path of the console's first page
	Operator Operator
	Token    string
	Search   search // what was looked for, to be shown in the form again
	Scopes   string // what a scope is in this service
	Strip    []healthLine
	Here     string // path of this page below Root
	Refresh  int    // seconds after which the page loads again; 0 if it does not
	SignOut  string // names the form that signs the operator out; empty if there is none
}

func (c *Console) page(r *http.Request, title string) page {
	op := operatorOf(r)
	return page{Title: title, Service: c.cfg.Service, Home: c.cfg.Home, SignOut: newSignOut(r), Root: root(r), Operator: op, Token: c.guard.token(op), Scopes: c.cfg.ScopeHint, Strip: c.strip.get(r.Context()).Lines,
		Here: strings.TrimPrefix(r.URL.Path, "/")}
}

// root leads from a page to the first one. The console does not know where it is mounted, so all
// its links are relative.
func root(r *http.Request) string {
	if up := strings.Count(r.URL.Path, "/") - 1; up > 0 {
		return strings.Repeat("../", up)
	}
	return "./"
}

// seeOther answers a POST. The Location is relative to the page (RFC 9110, section 10.2.2).
func seeOther(w http.ResponseWriter, location string) {
	w.Header().Set("Location", location)
	w.WriteHeader(http.StatusSeeOther)
}

func (c *Console) render(w http.ResponseWriter, r *http.Request, status int, name string, data any) {
	var out bytes.Buffer
	if err := templates[name].ExecuteTemplate(&out, "layout", data); err != nil {
		c.cfg.Logger.ErrorContext(r.Context(), "console: page", "page", name, "err", err)
		http.Error(w, "This page has a fault. See the log of the service.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(out.Bytes())
}

// errorPage tells an operator what went wrong.
type errorPage struct {
	page
	Text   string
	SignIn bool // with a link to sign in
}

// fail tells an operator about a request that was not served.
func (c *Console) fail(w http.ResponseWriter, r *http.Request, status int, text string) {
	c.render(w, r, status, "error", errorPage{page: c.page(r, http.StatusText(status)), Text: text})
}

// refuse answers somebody who is no operator, with a page that tells nothing about the service.
func (c *Console) refuse(w http.ResponseWriter, r *http.Request, status int, text string) {
	c.render(w, r, status, "error", errorPage{page: page{Title: http.StatusText(status), Root: root(r)}, Text: text})
}

// unavailable tells that a server did not answer. The error itself goes to the log, because it may
// have addresses.
func (c *Console) unavailable(w http.ResponseWriter, r *http.Request, err error) {
	c.cfg.Logger.ErrorContext(r.Context(), "console: a server did not answer", "path", r.URL.Path, "err", err)
	text := "The token store does not answer. The log of the service has the reason."
	switch {
	case errors.Is(err, driver.ErrStoreLost):
		text = "The token store has lost its records. See idemctl store accept."
	case errors.Is(err, context.Canceled):
		text = "The request was given up."
	}
	c.fail(w, r, http.StatusServiceUnavailable, text)
}

// patience bounds the checks of one page.
const patience = 3 * time.Second
