package rpc

import (
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	paymentsv1 "github.com/idemkeeper/idemkeeper/example-payments/proto/payments/v1"
	"github.com/idemkeeper/idemkeeper/idem"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
)

// orderRequest is a request that moves money.
type orderRequest interface {
	proto.Message
	GetFrom() string
	GetTo() string
	GetAmount() int64
	GetCurrency() string
	GetNote() string
}

var (
	_ orderRequest = (*paymentsv1.CreatePaymentRequest)(nil)
	_ orderRequest = (*paymentsv1.CreateTradeRequest)(nil)
)

func orderOf(req orderRequest) payments.Order {
	return payments.Order{From: req.GetFrom(), To: req.GetTo(), Amount: req.GetAmount(), Currency: req.GetCurrency(), Note: req.GetNote()}
}

// message is a payment as clients see it. The same payment gives the same
// message, now or read back from the ledger: a resolver relies on it.
func message(p payments.Payment) *paymentsv1.Payment {
	return &paymentsv1.Payment{
		Id: p.ID, From: p.From, To: p.To, Amount: p.Amount, Currency: p.Currency, Note: p.Note,
		Status: p.Status, CreatedAt: timestamppb.New(p.CreatedAt),
	}
}

// Owns reports whether a route, as an [idem.Interrupted] names it, is a method
// of this package.
func Owns(route string) bool { return strings.HasPrefix(route, "/payments.v1.") }

// Answer is the stored form of the answer to a payment that was made, for a
// resolver.
func Answer(p payments.Payment) (idem.Response, error) { return idemgrpc.Outcome(nil, message(p)) }
