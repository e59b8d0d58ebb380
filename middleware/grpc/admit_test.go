package idemgrpc

import (
	"testing"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/idemkeeper/idemkeeper/idem"
	walletv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/internal/testproto/wallet/v1"
)

// A record of a later build has a fingerprint that this one cannot make. It is no match, and no
// mismatch either.
func TestFingerprintOfALaterVersion(t *testing.T) {
	t.Parallel()
	x, _ := interceptors(t, idem.Policy{AllowGlobalKeys: true})
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(DefaultMetadataKey, "k1"))
	op, _, err := x.admit(ctx, x.options.method(walletv1.WalletService_Transfer_FullMethodName), &walletv1.TransferRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := op.Fingerprint(idem.FingerprintVersion); err != nil {
		t.Errorf("Fingerprint() = %v", err)
	}
	if _, err := op.Fingerprint(255); err == nil {
		t.Error("Fingerprint(255) = nil, want an error")
	}
}

// A key is one text.
func TestFieldsThatCanHoldAKey(t *testing.T) {
	t.Parallel()
	fields := new(walletv1.Kinds).ProtoReflect().Descriptor().Fields()
	for name, want := range map[protoreflect.Name]bool{"string_field": true, "strings_field": false, "bytes_field": false, "none": false} {
		if got := isKeyField(fields.ByName(name)); got != want {
			t.Errorf("isKeyField(%s) = %v, want %v", name, got, want)
		}
	}
}
