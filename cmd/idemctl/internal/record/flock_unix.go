//go:build unix

package record

import (
	"errors"
	"os"
	"syscall"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
)

// lockFile returns [cli.ErrNotAcquired] if another process has locked the file. The lock ends with the process.
func lockFile(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return cli.ErrNotAcquired
	}
	return err
}
