package servers

import (
	"cmp"
	"context"
	"strings"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// Page is how many open records are read in one call.
const Page = 1000

// EachOpen calls f with every open record of a query, oldest first, and with the
// unreadable ones, until f returns false. q.Limit is the size of a page. If a part of the store does not
// answer, f gets the records of the others, and EachOpen returns an error in the end.
func EachOpen(ctx context.Context, store driver.Store, q driver.OpenQuery, f func(*driver.OpenRecord) bool) (failed error) {
	for {
		found, err := store.ListOpen(ctx, q)
		failed = cmp.Or(failed, err)
		for i := range found.Records {
			if !f(&found.Records[i]) {
				return failed
			}
		}
		if q.After = found.Next; q.After == nil {
			return failed
		}
	}
}

// OfEnsemble reports whether a lock domain belongs to the ensemble of another one.
func OfEnsemble(domain, own string) bool {
	ours, _ := splitDomain(own)
	theirs, _ := splitDomain(domain)
	return theirs == ours
}

// RootOf is the root of the locks of a domain.
func RootOf(domain string) string {
	_, root := splitDomain(domain)
	return cmp.Or(root, "/lock")
}

// splitDomain splits a lock domain into the name of its ensemble and the root of its locks, which is "" for the default root.
func splitDomain(domain string) (ensemble, root string) {
	at := strings.IndexByte(domain+"/", '/')
	return domain[:at], domain[at:]
}

// HighestFence is the highest known fence of the locks of an ensemble, which may have several roots.
// fences has those of open records by their domain.
func HighestFence(ctx context.Context, store driver.Store, domain string, fences map[string]uint64) (driver.Fence, error) {
	token, err := store.HighestFence(ctx, domain)
	for of, t := range fences {
		if OfEnsemble(of, domain) {
			token = max(token, t)
		}
	}
	return driver.Fence{Domain: domain, Token: token}, err
}
