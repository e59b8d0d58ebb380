// Package natsjobs settles invoices that arrive through a stream of NATS. NATS delivers a message
// again if its acknowledgement is late or lost. The engine runs it at most once.
package natsjobs

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/idemkeeper/idemkeeper/idem"
)

// KeyHeader is the header of a message with the ID of its invoice. A publisher that repeats itself
// sends the same one. The sequence number of the stream would be another one.
const KeyHeader = "Invoice-Id"

// Consumer settles invoices. Make it with all fields set.
type Consumer struct {
	Engine *idem.Engine
	// Policy has a resolver that looks an operation ID up in the ledger.
	Policy idem.Policy
	// Settle pays an invoice. An error says that it may have been paid or not.
	Settle func(ctx context.Context, invoice []byte) error
}

// Handle runs one message and acknowledges it. It is safe for concurrent use.
func (c *Consumer) Handle(ctx context.Context, msg jetstream.Msg) {
	_, err := c.Engine.Do(ctx, idem.Operation{
		Scope:       "invoices",
		Key:         idem.Key(msg.Headers().Get(KeyHeader)),
		Policy:      &c.Policy,
		Fingerprint: idem.FingerprintOf("settle invoice", string(msg.Data())),
	}, func(ctx context.Context) (idem.Response, error) {
		return idem.Response{}, c.Settle(ctx, msg.Data())
	})
	if err = acknowledge(msg, err); err != nil {
		slog.Warn("the message will come again", "error", err)
	}
}

// acknowledge tells NATS what became of a message.
func acknowledge(msg jetstream.Msg, err error) error {
	refusal, refused := errors.AsType[*idem.Refusal](err)
	switch {
	case err == nil:
		return msg.Ack()
	case !refused: // the resolver could not tell, and the next delivery asks it again
		return msg.NakWithDelay(time.Second)
	case refusal.RetryAfter > 0: // it runs elsewhere, or lock or store cannot be reached
		return msg.NakWithDelay(refusal.RetryAfter)
	}
	switch refusal.Code {
	case idem.CodeKeyExpired, idem.CodeResultUnavailable: // it was settled earlier
		return msg.Ack()
	case idem.CodeOutcomeUnknown: // an operator decides
		return msg.NakWithDelay(time.Minute)
	default: // no key, or the key of another invoice
		return msg.TermWithReason(string(refusal.Code))
	}
}
