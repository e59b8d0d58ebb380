//go:build !unix

package ledger

import "errors"

// claimFile refuses: without flock nothing tells whether another instance, or
// a predecessor, still writes.
func claimFile(string, Sharing) (func() error, error) {
	return nil, errors.New("ledger: a SQLite file needs flock, which this system does not have; use postgres://…, or no --database")
}
