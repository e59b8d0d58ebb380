package memorylock

import (
	"context"
	"os"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

var _ driver.LockInspector = (*Locker)(nil)

// HeldBy implements [driver.LockInspector]. The owner is always this process.
func (l *Locker) HeldBy(_ context.Context, id driver.KeyID) (driver.Holder, bool, error) {
	nonce, held := l.Holder(id)
	if !held {
		return driver.Holder{}, false, nil
	}
	host, err := os.Hostname()
	if err != nil {
		host = "this host"
	}
	return driver.Holder{Host: host, PID: os.Getpid(), Nonce: nonce}, true, nil
}

// DomainOf implements [driver.LockInspector]. All keys have one domain.
func (l *Locker) DomainOf(context.Context, driver.KeyID) (string, error) { return l.domain, nil }
