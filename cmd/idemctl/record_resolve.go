package main

import (
	"context"
	"errors"
	"fmt"
	"os/user"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/tokenstore/sealed"
)

// verdict is what an operator says of an open attempt.
type verdict struct {
	answer            *answer // that repeats get; nil: it was not applied
	allow             []string
	decision          idem.Decision
	resultTTL, keyTTL time.Duration
	applied           string // FILE
	notApplied        bool
	marking           bool // with durable markers
	transport         string
	attempt           uint32 // that was looked at; 0: whichever is open now
	noZooKeeper       bool   // the services have none any more
}

func (a *app) recordResolve() *cobra.Command {
	var which whichKey
	var who author
	var v verdict
	cmd := &cobra.Command{
		Use:   "resolve (--scope SCOPE KEY | --key-id HEX) (--applied FILE | --not-applied)",
		Short: "Settle an outcome that is open",
		Long: `Settle the open attempt of a key by your word, once you have looked up in the
systems behind the service what became of its operation ("record show" tells the
operation ID).

--applied FILE: it took effect. Whoever repeats the request gets the response in
FILE ("-": standard input), which is
  {"status":201,"headers":{"Content-Type":["application/json"]},"body":"…"}
with body_base64 in place of body where it is no text. The headers are those that
are replayed: Content-Type, -Language, -Encoding, -Disposition, Location, ETag,
and what --allow-header names, which the service has to replay as well.

The status tells the transport: 200 to 599 are HTTP's, 0 to 16 are gRPC's codes. It
has to be the one that the record's route looks like: /package.Service/Method is
gRPC's; /Service/Method, of two plain words, can be either's (/v1/payments); all
else is HTTP's. --transport http or grpc says so where a route looks otherwise.

Of gRPC's code 0 (OK) the answer is body_base64, the protobuf message in its binary
form (left out: the empty message), with its full name as message_type where the
service has no generated code of the method; of any other code body is the
status's text. The headers are metadata: content-language, etag, location; values
of names that end in -bin are base64. Values are printable ASCII.

Where the services encrypt stored responses, --applied needs --response-keys, and
is refused without (exit code 1): a plain response would be unreadable to them.

--not-applied: it did NOT take effect. This is a promise: the effect has not
happened AND CAN NO LONGER HAPPEN. The operation may run again from then on, and
would be executed twice if it is only late: in a queue, in a suspended process, at
a partner who answers tomorrow. Where you cannot exclude that, leave it open.

The decision is about the attempt that is open when idemctl looks, and about no
later one. Give --attempt N, as "record show" and "record list" print it, where you
have looked it up before: it can have been released, and run again, meanwhile.

An attempt that still runs is not overruled: the lock of its key is taken first,
in ZooKeeper where --zookeeper names the ensemble of the attempt's lock domain, in
Redis where the domain is that of Redis's locks. An unknown outcome can be settled
without, which is said on standard error; a pending one cannot. Where its domain was
retired, the lock is one of the ensemble that the services use now: give
--zookeeper, or --no-zookeeper where they use none any more but Redis's locks. With
--durable-markers, where the services leave those, the marker is changed with the
record. Who settles first, wins: the next request, a resolver, an operator.

Prints the record as "record show" does. Exits with 75 where there is no record,
where somebody holds its lock, where it is settled already, or where another
attempt than N is open; with 2 where FILE is not as above. Then nothing was changed.`,
		Example: `  idemctl --redis redis://127.0.0.1:6379 --zookeeper 127.0.0.1:2181 \
    record resolve --scope merchant_demo order-17 --applied answer.json --reason "found in the ledger"
  echo '{"status":201,"headers":{"Content-Type":["application/json"]},"body":"{\"id\":\"pay_1\"}"}' |
    idemctl --redis redis://127.0.0.1:6379 record resolve --key-id 5f6c… --applied -
  idemctl --redis redis://127.0.0.1:6379 --zookeeper 127.0.0.1:2181 \
    record resolve --key-id 5f6c… --not-applied --by alice --reason "order was refused by the bank, ticket 4711"`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := which.id(cmd, args)
			if err != nil {
				return err
			}
			if err := a.readVerdict(cmd, &v, &who); err != nil {
				return err
			}
			return a.resolve(cmd.Context(), id, &v)
		},
	}
	which.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&v.applied, "applied", "", "it took effect; repeats get the response in `FILE`")
	f.BoolVar(&v.notApplied, "not-applied", false, "it has not taken effect, and no longer can")
	who.flags(cmd)
	f.StringSliceVar(&v.allow, "allow-header", nil, "further `NAME` of a header that the service replays")
	f.StringVar(&v.transport, "transport", "", "http or grpc: that of the route, where its name looks otherwise")
	f.Uint32Var(&v.attempt, "attempt", 0, "decide about attempt `N` only, which you have looked at (default: the one that is open)")
	noZooKeeperFlag(cmd, &v.noZooKeeper)
	f.BoolVar(&v.marking, "durable-markers", false, "the services leave durable markers in ZooKeeper; have the decision change them")
	f.DurationVar(&v.resultTTL, "result-ttl", idem.DefaultResultTTL, "for how long the response is kept")
	f.DurationVar(&v.keyTTL, "key-ttl", idem.DefaultKeyTTL, "for how long the key is remembered; at least as long as the response")
	return cmd
}

// readVerdict reads flags and FILE, before anybody is asked.
func (a *app) readVerdict(cmd *cobra.Command, v *verdict, who *author) (err error) {
	applied := cmd.Flags().Changed("applied")
	switch {
	case applied == v.notApplied:
		return wrongUse("record resolve wants --applied FILE or --not-applied, one of them")
	case v.resultTTL <= 0 || v.keyTTL <= 0:
		return wrongUse("--result-ttl or --key-ttl is not positive")
	case cmd.Flags().Changed("attempt") && v.attempt == 0:
		return wrongUse("--attempt 0: they count from 1")
	case cmd.Flags().Changed("transport") && !slices.Contains([]transport{overHTTP, overGRPC}, transport(v.transport)):
		return wrongUse("--transport %q is neither http nor grpc", v.transport)
	case v.noZooKeeper && a.zookeeper != "":
		return errBothWays
	}
	for _, name := range v.allow {
		if !token.MatchString(name) {
			return wrongUse("--allow-header %q is not the name of a header", name)
		}
	}
	if v.decision, err = who.decision(cmd); err != nil || !applied {
		return err
	}
	v.answer, err = a.readAnswer(v.applied)
	return err
}

// response is what repeats get; nil where it was not applied.
func (v *verdict) response(rec *idem.Record) (*idem.Response, error) {
	if v.answer == nil {
		return nil, nil //nolint:nilnil // there is none then
	}
	resp, err := v.answer.response(rec.Route, transport(v.transport), v.allow)
	if err != nil {
		return nil, usageError{fmt.Errorf("--applied: %w", err)}
	}
	return &resp, nil
}

func (a *app) resolve(ctx context.Context, id idem.KeyID, v *verdict) error {
	b, err := a.openBackends(ctx, need{})
	if err != nil {
		return err
	}
	defer b.close()
	rec, err := b.store.Get(ctx, id)
	switch {
	case err != nil && !errors.Is(err, sealed.ErrUnreadable): // which is the response's fault
		return err
	case rec.State == idem.StateNone:
		return noRecord(id)
	case !rec.State.Open() || v.attempt != 0 && v.attempt != rec.Attempt.Number:
		return notOpen(id, &rec, v.attempt)
	}
	if err := a.checkSealed(ctx, b.store, &rec, v); err != nil {
		return err
	}
	if rec, err = a.decide(ctx, b, id, &rec, v); err != nil {
		return err
	}
	return a.writeRecord(&idem.OpenRecord{ID: id, Record: rec}, nil, false)
}

// checkSealed refuses to store a response that the services would not read.
func (a *app) checkSealed(ctx context.Context, store tokenStore, rec *idem.Record, v *verdict) error {
	if v.answer == nil || a.responseKeys != "" {
		return nil
	}
	declared, err := store.Sealed(ctx)
	if err != nil {
		return err
	}
	found := false
	if rec.Response != nil {
		_, found = rec.Response.Header[sealed.Marker]
	}
	if declared || found {
		return errors.New("the services encrypt stored responses, and would not read a plain one: give --response-keys, or IDEMCTL_RESPONSE_KEYS")
	}
	return nil
}

// notOpen says that there is nothing to decide, of an attempt that was looked at
// (0: of any).
func notOpen(id idem.KeyID, rec *idem.Record, attempt uint32) error {
	if rec.State.Open() {
		return fmt.Errorf("attempt %d of key ID %s is not open: attempt %d is, which is %v since %s: %w",
			attempt, id, rec.Attempt.Number, rec.State, rec.Since().UTC().Format(time.RFC3339), errNothing)
	}
	by := ""
	if rec.Decision.By != "" {
		by = " by " + oneLine(rec.Decision.By)
	}
	return fmt.Errorf("nothing is open of key ID %s: it is %v%s, since %s: %w",
		id, rec.State, by, rec.Since().UTC().Format(time.RFC3339), errNothing)
}

// settledElsewhere says who was first, where that can be told.
func settledElsewhere(ctx context.Context, store idem.Store, id idem.KeyID, attempt uint32) error {
	rec, err := store.Get(ctx, id)
	if err != nil && !errors.Is(err, sealed.ErrUnreadable) {
		return fmt.Errorf("somebody else has settled it: %w", errors.Join(errNothing, err))
	}
	return notOpen(id, &rec, attempt)
}

// Limits of an [idem.Decision], in bytes.
const (
	maxAuthor = 128
	maxReason = 512
)

// machines are those who decide without anybody, as [idem.Decision] tells.
var machines = []string{"resolver", "engine", "marker", "sweeper"}

// reserved says that a name would pass for a machine's.
func reserved(by string) bool {
	return slices.ContainsFunc(machines, func(name string) bool { return strings.EqualFold(strings.TrimSpace(by), name) })
}

// author is who decides something, and why: kept with what was decided.
type author struct{ by, reason string }

func (w *author) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&w.by, "by", "", "who decides, kept and shown (default: the system user)")
	cmd.Flags().StringVar(&w.reason, "reason", "", "why, kept and shown")
}

func (w *author) decision(cmd *cobra.Command) (idem.Decision, error) {
	d := idem.Decision{By: w.by, Reason: w.reason}
	if !cmd.Flags().Changed("by") {
		me, err := user.Current()
		if err != nil {
			return d, wrongUse("give --by: the system does not tell who you are: %w", err)
		}
		d.By = me.Username
		for len(d.By) > maxAuthor { // nobody can give another one
			_, n := utf8.DecodeLastRuneInString(d.By)
			d.By = d.By[:len(d.By)-n]
		}
	}
	switch {
	case d.By == "":
		return d, wrongUse("--by is empty")
	case len(d.By) > maxAuthor:
		return d, wrongUse("--by has %d bytes, at most %d", len(d.By), maxAuthor)
	case len(d.Reason) > maxReason:
		return d, wrongUse("--reason has %d bytes, at most %d", len(d.Reason), maxReason)
	case reserved(d.By):
		return d, wrongUse("--by %s is the name of a part of the services, not of a person", oneLine(d.By))
	case !utf8.ValidString(d.By) || !utf8.ValidString(d.Reason):
		return d, wrongUse("--by or --reason is not UTF-8")
	}
	return d, nil
}
