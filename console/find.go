package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/operate"
)

// findTimeout bounds the search for an operation ID, which may read every record.
const findTimeout = 20 * time.Second

// search is what an operator looks for, as it was entered.
type search struct {
	Key   string // a key of a client, or an operation ID, or a key ID
	Scope string // of a client's key
}

// operationForm is the form of an operation ID.
var operationForm = regexp.MustCompile(`^op_[0-9a-f]{32}$`)

// find leads to the story of a key. The key comes in the body of a POST, so it is in no URL.
func (c *Console) find(w http.ResponseWriter, r *http.Request) {
	s := search{Key: strings.TrimSpace(r.PostForm.Get("key")), Scope: strings.TrimSpace(r.PostForm.Get("scope"))}
	id, text, err := c.searchFor(r.Context(), s)
	switch {
	case err != nil:
		c.unavailable(w, r, err)
	case text != "":
		p := errorPage{page: c.page(r, "Not found"), Text: text}
		p.Search = s
		c.render(w, r, http.StatusNotFound, "error", p)
	default:
		seeOther(w, root(r)+"key/"+id.String())
	}
}

// searchFor returns the key ID of a record. text tells the operator why there is none. A client
// may have chosen a key that looks like an ID, so with a scope the key comes first.
func (c *Console) searchFor(ctx context.Context, s search) (id driver.KeyID, text string, err error) {
	key, err := idem.ParseKey([]string{s.Key})
	valid := err == nil
	if valid && s.Scope != "" {
		id = idem.NewKeyID(s.Scope, key)
		if found, err := c.recorded(ctx, id); found || err != nil {
			return id, "", err
		}
	}
	what, typed := "", strings.ToLower(s.Key)
	if operationForm.MatchString(typed) {
		what = "operation ID"
		ctx, cancel := context.WithTimeout(ctx, findTimeout)
		defer cancel()
		id, found, err := c.look.FindOperation(ctx, typed)
		switch {
		case found:
			return id, "", nil
		case errors.Is(err, context.DeadlineExceeded):
			return id, "The search took too long. Look for the key ID in the log of the service.", nil
		case errors.Is(err, errors.ErrUnsupported):
			return id, "No open record has this operation ID, and this store does not list the settled ones.", nil
		case err != nil:
			return id, "", err
		}
	} else if id, err = driver.ParseKeyID(typed); err == nil {
		what = "key ID"
		if found, err := c.recorded(ctx, id); found || err != nil {
			return id, "", err
		}
	}
	if valid && s.Scope == "" {
		id = idem.NewKeyID("", key)
		if found, err := c.recorded(ctx, id); found || err != nil {
			return id, "", err
		}
	}
	return id, notFound(s, what, valid), nil
}

// recorded reports whether the store has a record of a key, be it readable or not.
func (c *Console) recorded(ctx context.Context, id driver.KeyID) (bool, error) {
	f, err := c.look.Get(ctx, id)
	return err == nil && (f.Err != nil || f.Record.State != driver.StateNone), err
}

// notFound tells what was looked for in vain. A search that failed must not read as "never
// charged".
func notFound(s search, what string, valid bool) string {
	const proof = " This does not mean that nothing was charged: look the order itself up, too."
	key := operate.OneLine(s.Key)
	switch {
	case s.Key == "":
		return "Enter the key that the client sent and its scope, or an operation ID, or a key ID."
	case what != "":
		return fmt.Sprintf("No record has the %s %s. A typing error looks the same, and so does a record that was forgotten.", what, key) + proof
	case !valid:
		return key + " is not a valid key. Perhaps a part of it is missing, or there is more than the key."
	case s.Scope == "":
		return fmt.Sprintf("No record for key “%s” without a scope. Enter its scope, too: a key is known only together with its scope.", key) + proof
	}
	return fmt.Sprintf("No record for key “%s” in scope “%s”. A wrong scope looks the same, and so does a record that was forgotten.", key, operate.OneLine(s.Scope)) + proof
}
