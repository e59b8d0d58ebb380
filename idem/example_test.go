package idem_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// An engine in one process needs no server. Adapters for HTTP and gRPC take it from here.
func ExampleNew() {
	engine, err := idem.New(memorylock.New(), memorystore.New())
	if err != nil {
		panic(err)
	}
	policy := idem.Policy{Name: "pay", InDoubt: idem.LeaveUnknown()}
	for range 2 {
		res, err := engine.Do(context.Background(), idem.Operation{
			Scope: "merchant_1", Key: "order-1001", Policy: &policy, Fingerprint: idem.FingerprintOf("pay", "12.50"),
		}, func(context.Context) (idem.Response, error) {
			fmt.Println("the money moves now")
			return idem.Response{Body: []byte("pay_1")}, nil
		})
		fmt.Printf("%s, replayed %v, %v\n", res.Response.Body, res.Replayed, err)
	}
	// Output:
	// the money moves now
	// pay_1, replayed false, <nil>
	// pay_1, replayed true, <nil>
}

// The bank's answer is lost. The resolver finds the payment by its operation ID, so the client gets
// the success.
func ExampleAskResolver() {
	engine, err := idem.New(memorylock.New(), memorystore.New())
	if err != nil {
		panic(err)
	}
	paid := map[string]string{} // the ledger, by operation ID
	policy := idem.Policy{Name: "pay", InDoubt: idem.AskResolver(func(_ context.Context, in idem.Interrupted) (idem.Resolution, error) {
		if payment, ok := paid[in.OperationID]; ok {
			return idem.Applied(idem.Response{Body: []byte(payment)}), nil
		}
		return idem.StillUnknown(), nil // NotApplied would need a look that also shuts late writes out
	})}
	res, err := engine.Do(context.Background(), idem.Operation{
		Scope: "merchant_1", Key: "order-1001", Policy: &policy, Fingerprint: idem.FingerprintOf("pay", "12.50"),
	}, func(ctx context.Context) (idem.Response, error) {
		execution, _ := idem.FromContext(ctx)
		paid[execution.OperationID] = "pay_1"
		return idem.Response{}, errors.New("no answer from the bank")
	})
	fmt.Printf("%s, %v\n", res.Response.Body, err)
	// Output: pay_1, <nil>
}

// The key for the next system is the same for every attempt of an operation.
func ExampleDownstreamKey() {
	engine, err := idem.New(memorylock.New(), memorystore.New())
	if err != nil {
		panic(err)
	}
	seen := map[string]bool{}
	policy := idem.Policy{Name: "pay", InDoubt: idem.RunAgain()} // right, because the bank knows keys
	for attempt := range 2 {
		_, err := engine.Do(context.Background(), idem.Operation{
			Scope: "merchant_1", Key: "order-1001", Policy: &policy, Fingerprint: idem.FingerprintOf("pay", "12.50"),
		}, func(ctx context.Context) (idem.Response, error) {
			key, err := idem.DownstreamKey(ctx, "capture")
			if err != nil {
				return idem.Response{}, err
			}
			seen[key] = true
			if attempt == 0 {
				return idem.Response{}, errors.New("no answer from the bank")
			}
			return idem.Response{}, nil
		})
		fmt.Println(err)
	}
	fmt.Println(len(seen), "key at the bank")
	// Output:
	// no answer from the bank
	// <nil>
	// 1 key at the bank
}

// A queue delivers a message more than once. The consumer acknowledges it when Do
// returns nil, and only then.
func ExampleEngine_Do() {
	engine, err := idem.New(memorylock.New(), memorystore.New())
	if err != nil {
		panic(err)
	}
	settle := idem.Policy{Name: "settle invoice", InDoubt: idem.LeaveUnknown()}
	consume := func(ctx context.Context, tenant, id, body string) error {
		_, err := engine.Do(ctx, idem.Operation{
			Scope:       tenant,
			Key:         idem.Key(id),
			Policy:      &settle,
			Fingerprint: idem.FingerprintOf(settle.Name, body),
		}, func(context.Context) (idem.Response, error) {
			fmt.Println("settled", body)
			return idem.Response{}, nil
		})
		return err
	}
	ctx := context.Background()
	fmt.Println(consume(ctx, "merchant_1", "message-7", "invoice 12"))
	fmt.Println(consume(ctx, "merchant_1", "message-7", "invoice 12")) // delivered again

	err = consume(ctx, "merchant_1", "message-7", "invoice 13") // another one with its ID
	if refusal, ok := errors.AsType[*idem.Refusal](err); ok {
		fmt.Println(refusal.Code)
	}
	if err := engine.Close(ctx); err != nil {
		panic(err)
	}
	// Output:
	// settled invoice 12
	// <nil>
	// <nil>
	// key-reused
}

// A token stands for one payment. The service issues it, for example with the page that has the
// button, and nobody else can make one up.
func ExampleEngine_IssueToken() {
	ctx := context.Background()
	engine, err := idem.New(memorylock.New(), memorystore.New())
	if err != nil {
		panic(err)
	}
	token, err := engine.IssueToken(ctx, "merchant_1", 0)
	if err != nil {
		panic(err)
	}
	policy := idem.Policy{Name: "pay", IssuedTokens: true, InDoubt: idem.LeaveUnknown()}
	for _, key := range []idem.Key{token.Value, token.Value, "made-up"} {
		res, err := engine.Do(ctx, idem.Operation{
			Scope: "merchant_1", Key: key, Policy: &policy, Fingerprint: idem.FingerprintOf("pay", "12.50"),
		}, func(context.Context) (idem.Response, error) {
			return idem.Response{Body: []byte("pay_1")}, nil
		})
		fmt.Printf("%q, replayed %v, %v\n", res.Response.Body, res.Replayed, err)
	}
	// Output:
	// "pay_1", replayed false, <nil>
	// "pay_1", replayed true, <nil>
	// "", replayed false, idem: refused: token-unknown
}

// The authentication leaves the owner of the keys in the context, and the policy takes it from there.
// Two merchants may use the same key.
func ExampleScopeFrom() {
	type merchant struct{}
	policy := idem.Policy{Scope: idem.ScopeFrom(merchant{}), InDoubt: idem.LeaveUnknown()}
	ctx := context.WithValue(context.Background(), merchant{}, "merchant_1")
	scope, err := policy.Scope(ctx)
	fmt.Println(scope, err)
	// Output: merchant_1 <nil>
}

// The handler asks right before it sends what cannot be taken back.
func ExampleCheckOwner() {
	engine, err := idem.New(memorylock.New(), memorystore.New())
	if err != nil {
		panic(err)
	}
	policy := idem.Policy{Name: "pay", InDoubt: idem.LeaveUnknown()}
	_, err = engine.Do(context.Background(), idem.Operation{
		Scope: "merchant_1", Key: "order-1001", Policy: &policy, Fingerprint: idem.FingerprintOf("pay", "12.50"),
	}, func(ctx context.Context) (idem.Response, error) {
		good, err := idem.CheckOwner(ctx)
		if err != nil {
			return idem.Response{}, err // do not send
		}
		execution, _ := idem.FromContext(ctx)
		// The ledger refuses a fence below one that it has seen. Package fence does that in SQL.
		fmt.Println("send within", good > 0, "and give the fence", execution.Fence.Token > 0)
		return idem.Response{}, nil
	})
	fmt.Println(err)
	// Output:
	// send within true and give the fence true
	// <nil>
}

// The handler knows that nothing has happened. So the key is not in doubt, and a repeat runs.
func ExampleNoEffect() {
	engine, err := idem.New(memorylock.New(), memorystore.New())
	if err != nil {
		panic(err)
	}
	policy := idem.Policy{Name: "pay", InDoubt: idem.LeaveUnknown()}
	for attempt := range 2 {
		res, err := engine.Do(context.Background(), idem.Operation{
			Scope: "merchant_1", Key: "order-1001", Policy: &policy, Fingerprint: idem.FingerprintOf("pay", "12.50"),
		}, func(ctx context.Context) (idem.Response, error) {
			if attempt == 0 {
				idem.NoEffect(ctx)
				return idem.Response{}, errors.New("the bank is closed")
			}
			return idem.Response{Body: []byte("pay_1")}, nil
		})
		fmt.Printf("%q, %v\n", res.Response.Body, err)
	}
	// Output:
	// "", the bank is closed
	// "pay_1", <nil>
}

// An observer hears of every event, with the operation ID of the key and never the key itself.
func ExampleWithObserver() {
	engine, err := idem.New(memorylock.New(), memorystore.New(), idem.WithObserver(func(_ context.Context, ev telemetry.Event) {
		fmt.Println(ev.Type, ev.KeyID.OperationID())
	}))
	if err != nil {
		panic(err)
	}
	policy := idem.Policy{Name: "pay", InDoubt: idem.LeaveUnknown()}
	for range 2 {
		_, err := engine.Do(context.Background(), idem.Operation{
			Scope: "merchant_1", Key: "order-1001", Policy: &policy, Fingerprint: idem.FingerprintOf("pay", "12.50"),
		}, func(context.Context) (idem.Response, error) { return idem.Response{}, nil })
		if err != nil {
			panic(err)
		}
	}
	// Output:
	// begun op_3b73d69ea42a435d20bb2a4f0d1a0953
	// completed op_3b73d69ea42a435d20bb2a4f0d1a0953
	// replayed op_3b73d69ea42a435d20bb2a4f0d1a0953
}
