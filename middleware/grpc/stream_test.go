package idemgrpc_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
	walletv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/internal/testproto/wallet/v1"
)

// streamed is a server stream as the client got it.
type streamed struct {
	numbers         []int32
	err             error // nil for OK
	header, trailer metadata.MD
}

func (s streamed) replayed() bool {
	return slices.Equal(s.header.Get("idempotent-replayed"), []string{"true"})
}

func (b *bundle) payout(ctx context.Context, count int32) (got streamed) {
	b.Helper()
	s, err := b.client.Payout(ctx, &walletv1.PayoutRequest{Count: count}, grpc.Header(&got.header), grpc.Trailer(&got.trailer))
	if err != nil {
		b.Fatalf("Payout() = %v", err)
	}
	for {
		r, err := s.Recv()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				got.err = err
			}
			return got
		}
		got.numbers = append(got.numbers, r.GetNumber())
	}
}

func uploadTwo(ctx context.Context, b *bundle) (*walletv1.UploadResponse, error) {
	s, err := b.client.Upload(ctx)
	if err != nil {
		return nil, err
	}
	for i := range int32(2) {
		if s.Send(&walletv1.UploadRequest{Number: i}) != nil {
			break // the status says why
		}
	}
	return s.CloseAndRecv()
}

func (b *bundle) wantNumbers(s streamed, n int32, replayed bool) {
	b.Helper()
	var want []int32
	for i := range n {
		want = append(want, i+1)
	}
	if s.err != nil || !slices.Equal(s.numbers, want) || s.replayed() != replayed {
		b.Fatalf("Payout() = %v, %v (replayed %v), want %v (replayed %v)", s.numbers, s.err, s.replayed(), want, replayed)
	}
}

// The messages of a stream arrive while its handler runs.
func TestStreamIsLive(t *testing.T) {
	t.Parallel()
	b := setup(t)
	release := make(chan struct{})
	b.wallet.payout = func(_ *walletv1.PayoutRequest, s grpc.ServerStreamingServer[walletv1.PayoutResponse]) error {
		if err := s.SendHeader(metadata.Pairs("x-early", "1")); err != nil {
			return err
		}
		if err := s.SetHeader(metadata.Pairs("x-late", "1")); err == nil {
			b.Error("SetHeader() after SendHeader = nil, want an error")
		}
		if err := s.SendHeader(nil); err == nil {
			b.Error("SendHeader() after SendHeader = nil, want an error")
		}
		if err := sendNumbers(s, 1); err != nil {
			return err
		}
		<-release
		return nil
	}
	b.start()
	s, err := b.client.Payout(b.withKeys("k1"), &walletv1.PayoutRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if header, err := s.Header(); err != nil || header.Get("x-early") == nil {
		t.Errorf("Header() = %v, %v, want x-early", header, err)
	}
	if r, err := s.Recv(); err != nil || r.GetNumber() != 1 {
		t.Errorf("Recv() = %v, %v, want 1", r, err)
	}
	busy := b.payout(b.withKeys("k1"), 0)
	b.wantRefusal(busy.err, idem.CodeInProgress)
	close(release)
	if _, err := s.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("Recv() = %v, want the end", err)
	}
	b.wantNumbers(b.payout(b.withKeys("k1"), 0), 1, true)
}

func TestStreamOutlivesItsClient(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.policy.DuplicateWait = patience // so that a repeat waits for the stream to end
	sent, gone := make(chan struct{}), make(chan struct{})
	b.wallet.payout = func(_ *walletv1.PayoutRequest, s grpc.ServerStreamingServer[walletv1.PayoutResponse]) error {
		if err := sendNumbers(s, 1); err != nil {
			return err
		}
		close(sent)
		<-gone
		if err := s.Context().Err(); err != nil {
			return err
		}
		for i := int32(1); i < 1000; i++ {
			if err := s.Send(&walletv1.PayoutResponse{Number: i + 1}); err != nil {
				return err
			}
		}
		return nil
	}
	b.start()
	ctx, cancel := context.WithCancel(b.withKeys("k1"))
	s, err := b.client.Payout(ctx, &walletv1.PayoutRequest{})
	if err != nil {
		t.Fatal(err)
	}
	receive(t, "a message", sent)
	cancel()
	for err == nil {
		_, err = s.Recv()
	}
	b.wantCode(err, codes.Canceled)
	close(gone)
	b.wantNumbers(b.payout(b.withKeys("k1"), 0), 1000, true)
	b.wantRuns(1)
}

func TestStreamPastTheLimitLearnsThatItsClientIsGone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.policy.MaxResponseBody = 1000
	sent, ended := make(chan struct{}), make(chan error, 1)
	b.wallet.payout = func(_ *walletv1.PayoutRequest, s grpc.ServerStreamingServer[walletv1.PayoutResponse]) error {
		var err error
		for i := 0; err == nil; i++ {
			err = s.Send(&walletv1.PayoutResponse{Padding: make([]byte, 100)})
			if i == 20 {
				close(sent)
			}
		}
		ended <- err
		return err
	}
	b.start()
	ctx, cancel := context.WithCancel(b.withKeys("k1"))
	if _, err := b.client.Payout(ctx, &walletv1.PayoutRequest{}); err != nil {
		t.Fatal(err)
	}
	receive(t, "messages", sent)
	cancel()
	if err := receive(t, "an end", ended); err == nil {
		t.Error("Send() = nil for ever")
	}
	b.eventually("the outcome is known to be in doubt", func() bool {
		st, err := b.engine.Status(context.Background(), "merchant", "k1")
		return err == nil && st.State == driver.StateUnknown
	})
	var got streamed
	b.eventually("the lock is given back", func() bool {
		got = b.payout(b.withKeys("k1"), 0)
		code, _ := idemgrpc.CodeOf(got.err)
		return code != idem.CodeInProgress
	})
	b.wantRefusal(got.err, idem.CodeOutcomeUnknown)
}

// A client that does not read does not hold its key past the deadline, and does not
// take what it has for the whole answer.
func TestStreamWhoseClientDoesNotRead(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.policy.HandlerTimeout = 50 * time.Millisecond
	const messages = 40 // of 10 kB, more than the windows of the stream
	b.wallet.payout = func(_ *walletv1.PayoutRequest, s grpc.ServerStreamingServer[walletv1.PayoutResponse]) error {
		for i := range int32(messages) {
			if err := s.Send(&walletv1.PayoutResponse{Number: i + 1, Padding: make([]byte, 10_000)}); err != nil {
				return err
			}
		}
		return nil
	}
	b.start()
	s, err := b.client.Payout(b.withKeys("k1"), &walletv1.PayoutRequest{})
	if err != nil {
		t.Fatal(err)
	}
	b.eventually("the outcome is known", func() bool {
		st, err := b.engine.Status(context.Background(), "merchant", "k1")
		return err == nil && st.State == driver.StateCompleted
	})
	got := int32(0)
	for err == nil {
		var r *walletv1.PayoutResponse
		if r, err = s.Recv(); err == nil {
			got = r.GetNumber()
		}
	}
	if got >= messages || status.Code(err) != codes.Unavailable {
		t.Errorf("the slow client got %d messages and %v, want less than %d and %v", got, err, messages, codes.Unavailable)
	}
	b.wantNumbers(b.payout(b.withKeys("k1"), 0), messages, true)
}

// A status comes after the messages, so it cannot say any more that the request
// was not admitted.
func TestStreamThatWasSeenHasAnEffect(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.wallet.payout = func(_ *walletv1.PayoutRequest, s grpc.ServerStreamingServer[walletv1.PayoutResponse]) error {
		if err := s.Send(&walletv1.PayoutResponse{Number: 1}); err != nil {
			return err
		}
		return status.Error(codes.ResourceExhausted, "that is enough for today")
	}
	b.start()
	for range 2 {
		got := b.payout(b.withKeys("k"), 3)
		b.wantRefusal(got.err, idem.CodeOutcomeUnknown)
	}
	b.wantRuns(1)
}

// A handler that asks for a second request learns that there is none. What is no message of
// protobuf is refused before the client sees anything of it.
func TestStreamHandlerWithoutMessages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.wallet.payout = func(req *walletv1.PayoutRequest, s grpc.ServerStreamingServer[walletv1.PayoutResponse]) error {
		if err := s.RecvMsg(new(walletv1.PayoutRequest)); !errors.Is(err, io.EOF) {
			t.Errorf("RecvMsg() = %v, want %v", err, io.EOF)
		}
		if err := s.SendMsg("text"); status.Code(err) != codes.Internal {
			t.Errorf("SendMsg() of a string = %v, want INTERNAL", err)
		}
		return sendNumbers(s, req.GetCount())
	}
	b.start()
	b.wantNumbers(b.payout(b.withKeys("k"), 2), 2, false)
	b.wantNumbers(b.payout(b.withKeys("k"), 2), 2, true)
	b.wantRuns(1)
}
