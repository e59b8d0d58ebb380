package rules

import (
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// Forget says what a Forget does with entry e, which is as [Entry.At] returned it. If write is not
// nil the store replaces e by it.
func Forget(e *Entry, now time.Time) (write *Entry) {
	switch {
	case e == nil || e.Response == nil:
		return nil
	case e.Record.State == driver.StateCompleted:
		write = new(*e)
		write.Record.ResultExpires = now
		return write.At(now)
	case e.Record.State == driver.StateUnknown:
		write = new(*e)
		write.Response = nil
	}
	return write
}
