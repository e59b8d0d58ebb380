package natsjobs

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// ledger is what the consumer pays from.
type ledger struct {
	mu         sync.Mutex
	settled    []string        // invoices, in the order of their payment
	operations map[string]bool // IDs of those that were paid
	fail       map[string]bool // invoices whose payment is reported as failed, once
}

func (l *ledger) settle(ctx context.Context, invoice []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	execution, ok := idem.FromContext(ctx)
	if !ok {
		return errors.New("outside of an execution")
	}
	l.settled = append(l.settled, string(invoice))
	l.operations[execution.OperationID] = true
	if l.fail[string(invoice)] {
		delete(l.fail, string(invoice))
		return errors.New("no answer from the bank")
	}
	return nil
}

// resolve is enough for a ledger in memory. A real one raises the fence with the look.
func (l *ledger) resolve(_ context.Context, i idem.Interrupted) (idem.Resolution, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.operations[i.OperationID] {
		return idem.Applied(idem.Response{}), nil
	}
	return idem.NotApplied(), nil
}

// withoutFirstAck loses the first acknowledgement.
type withoutFirstAck struct {
	jetstream.Msg
	lost *sync.Once
}

func (m withoutFirstAck) Ack() (err error) {
	lost := false
	m.lost.Do(func() { lost = true })
	if !lost {
		err = m.Msg.Ack()
	}
	return err
}

func TestInvoicesAreSettledOnce(t *testing.T) {
	js := startNATS(t)
	l := &ledger{operations: map[string]bool{}, fail: map[string]bool{"invoice 3": true}}
	engine, err := idem.New(memorylock.New(), memorystore.New())
	if err != nil {
		t.Fatal(err)
	}
	consumer := &Consumer{Engine: engine, Policy: idem.Policy{Name: "settle invoice", InDoubt: idem.AskResolver(l.resolve)}, Settle: l.settle}
	for _, m := range []struct{ key, body string }{
		{"1", "invoice 1"}, // its first acknowledgement is lost, so NATS delivers it again
		{"2", "invoice 2"},
		{"2", "invoice 2"}, // the publisher has repeated itself
		{"3", "invoice 3"}, // the answer of the bank is lost, and the resolver finds the payment
		{"1", "invoice 9"}, // another invoice under the same ID
		{"", "invoice 8"},  // no ID
	} {
		msg := &nats.Msg{Subject: "invoices.new", Data: []byte(m.body), Header: nats.Header{}}
		if m.key != "" {
			msg.Header.Set(KeyHeader, m.key)
		}
		if _, err := js.PublishMsg(t.Context(), msg); err != nil {
			t.Fatal(err)
		}
	}
	c, err := js.CreateOrUpdateConsumer(t.Context(), "INVOICES", jetstream.ConsumerConfig{
		Durable: "settle", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 3 * time.Second, FilterSubject: "invoices.new"})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	lost, deliveries := new(sync.Once), map[string]int{}
	consuming, err := c.Consume(func(msg jetstream.Msg) {
		mu.Lock()
		deliveries[string(msg.Data())]++
		mu.Unlock()
		if string(msg.Data()) == "invoice 1" {
			msg = withoutFirstAck{msg, lost}
		}
		consumer.Handle(t.Context(), msg)
	})
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		info, err := c.Info(t.Context())
		if err != nil || time.Now().After(end) {
			t.Fatalf("Info() = %+v, %v", info, err)
		}
		if info.NumPending == 0 && info.NumAckPending == 0 && info.Delivered.Consumer >= 6 {
			break
		}
	}
	consuming.Stop()
	<-consuming.Closed()
	mu.Lock()
	defer mu.Unlock()
	if want := []string{"invoice 1", "invoice 2", "invoice 3"}; !slices.Equal(l.settled, want) {
		t.Errorf("settled %v, want %v", l.settled, want)
	}
	for invoice, want := range map[string]int{"invoice 1": 2, "invoice 2": 2, "invoice 3": 1, "invoice 8": 1, "invoice 9": 1} {
		if deliveries[invoice] != want {
			t.Errorf("%s was delivered %d times, want %d", invoice, deliveries[invoice], want)
		}
	}
}

// startNATS starts a server in this process, with a stream for invoices.
func startNATS(t *testing.T) jetstream.JetStream {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("the server is not ready")
	}
	nc, err := nats.Connect(s.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "INVOICES", Subjects: []string{"invoices.*"}}); err != nil {
		t.Fatal(err)
	}
	return js
}
