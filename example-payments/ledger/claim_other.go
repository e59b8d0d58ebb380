//go:build !unix

package ledger

import "errors"

// claimFile fails, because without flock another instance could still write.
func claimFile(string, Sharing) (func() error, error) {
	return nil, errors.New("a SQLite file needs flock, which this system does not have; use postgres://…, or no --database")
}
