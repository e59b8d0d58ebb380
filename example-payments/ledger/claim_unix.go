//go:build unix

package ledger

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// claimFile locks FILE.lock, alone or shared, until unlock or the end of the process.
// The kernel frees the lock when the process dies and not before, so the holder
// knows that no earlier instance runs. The lock file is never removed. Otherwise two
// processes could lock two files of the same name.
func claimFile(path string, s Sharing) (unlock func() error, err error) {
	f, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE, 0o600) //nolint:gosec // the operator names the file
	if err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}
	how := syscall.LOCK_EX
	if s == Shared {
		how = syscall.LOCK_SH
	}
	err = syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
	switch {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return nil, errors.Join(fmt.Errorf("%w: %s is locked", ErrClaimed, f.Name()), f.Close())
	case err != nil:
		return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
	}
	return f.Close, nil
}
