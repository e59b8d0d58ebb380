package exchange

import (
	"errors"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/internal/adapter"
)

// This file is about middleware that answers for a handler which may still run, such as a
// time-out. Its status says nothing about the operation. If the outcome were taken from it, a
// status such as 429 would give the key back, and a repeat would run the handler again beside
// the first run.

var errForeign = errors.New("exchange: a goroutine other than that of the request has answered with a refusal, as a time-out does while the handler runs; set Policy.HandlerTimeout instead")

// serving is in the stack of what runs in the goroutine of the request.
var serving = adapter.CallerOf("github.com/idemkeeper/idemkeeper/middleware/exchange.(*Route).do")

// Doubt says that the response may not be the handler's, because middleware has answered while
// the handler may still run. The outcome is in doubt, whatever the response is. The client gets
// outcome-unknown, or unavailable in joined mode. The event is misused, with err. The first error
// counts.
func (w *Writer) Doubt(err error) {
	if w.doubt == nil {
		w.doubt = err
	}
}

// notTheHandlers is the refusal in place of such a response. In joined mode the transaction is
// rolled back, so nothing is in doubt.
func (rt *Route) notTheHandlers(err error) *idem.Refusal {
	if rt.engine.Joined() {
		return idem.NewRefusal(idem.CodeUnavailable, err)
	}
	return idem.NewRefusal(idem.CodeOutcomeUnknown, err)
}
