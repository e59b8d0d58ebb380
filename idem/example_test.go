package idem_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// A queue delivers a message more than once. The consumer acknowledges it when Do
// returns nil, and only then.
func ExampleEngine_Do() {
	engine, err := idem.New(memorylock.New(), memorystore.New())
	if err != nil {
		panic(err)
	}
	settle := idem.Policy{Name: "settle invoice"}
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
