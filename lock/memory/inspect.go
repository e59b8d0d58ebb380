package memorylock

import (
	"context"
	"os"

	"github.com/idemkeeper/idemkeeper/idem"
)

var _ idem.LockInspector = (*Locker)(nil)

// HeldBy implements [idem.LockInspector]. The owner is always this process.
func (l *Locker) HeldBy(_ context.Context, id idem.KeyID) (idem.Holder, bool, error) {
	nonce, held := l.Holder(id)
	if !held {
		return idem.Holder{}, false, nil
	}
	host, err := os.Hostname()
	if err != nil {
		host = "this host"
	}
	return idem.Holder{Host: host, PID: os.Getpid(), Nonce: nonce}, true, nil
}

// DomainOf implements [idem.LockInspector]. All keys have one domain.
func (l *Locker) DomainOf(context.Context, idem.KeyID) (string, error) { return l.domain, nil }
