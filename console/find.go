package console

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// findTimeout bounds the search for an operation ID, which may read every record.
const findTimeout = 20 * time.Second

// find leads to the story of a key. The key comes in the body of a POST, so it is in no URL.
func (c *Console) find(w http.ResponseWriter, r *http.Request) {
	id, text, err := c.keyOf(r)
	switch {
	case err != nil:
		c.unavailable(w, r, err)
	case text != "":
		c.fail(w, r, http.StatusNotFound, text)
	default:
		seeOther(w, root(r)+"key/"+id.String())
	}
}

// keyOf reads the form. text tells the operator why there is no key.
func (c *Console) keyOf(r *http.Request) (id idem.KeyID, text string, err error) {
	given := strings.TrimSpace(r.PostForm.Get("id"))
	switch {
	case strings.HasPrefix(given, "op_"):
		ctx, cancel := context.WithTimeout(r.Context(), findTimeout)
		defer cancel()
		id, found, err := c.look.FindOperation(ctx, given)
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			return id, "The search took too long. Look for the key ID in the log of the service.", nil
		case errors.Is(err, errors.ErrUnsupported):
			return id, "No open record has this operation ID, and this store does not list the settled ones.", nil
		case err == nil && !found:
			return id, "No record has this operation ID.", nil
		}
		return id, "", err
	case given != "":
		id, err := idem.ParseKeyID(strings.ToLower(given))
		if err != nil {
			return id, "This is neither an operation ID, which begins with op_, nor a key ID of 64 hexadecimal digits.", nil
		}
		return id, "", nil
	case r.PostForm.Get("key") == "":
		return id, "Enter an operation ID, a key ID, or a key and its scope.", nil
	}
	key, err := idem.ParseKey([]string{r.PostForm.Get("key")})
	if err != nil {
		return id, "This is not a valid key.", nil // the operator entered it
	}
	return idem.NewKeyID(r.PostForm.Get("scope"), key), "", nil
}
