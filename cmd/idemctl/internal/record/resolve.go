package record

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/answer"
	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/servers"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/operate"
	"github.com/idemkeeper/idemkeeper/tokenstore/sealed"
)

// verdict is an operator's decision about an open attempt.
type verdict struct {
	answer            *answer.Answer // for repeats, nil if the attempt was not applied
	allow             []string
	decision          driver.Decision
	resultTTL, keyTTL time.Duration
	timed             bool   // --key-ttl was given
	applied           string // FILE
	notApplied        bool
	marking           bool // change durable markers too
	transport         string
	attempt           uint32 // decide about this one only, 0 for the open one
	noZooKeeper       bool   // the services no longer lock in ZooKeeper
}

// decisions are the commands that settle outcomes.
type decisions struct {
	print   printer
	servers *servers.Flags
}

func (c *decisions) resolve() *cobra.Command {
	var which whichKey
	var who cli.Author
	var v verdict
	cmd := &cobra.Command{
		Use:   "resolve (--scope SCOPE KEY | --key-id HEX) (--applied FILE | --not-applied)",
		Short: "Settle an open outcome",
		Long: `Settle the open attempt of a key by your word. First look up the operation in the
systems that the service calls. "record show" prints the operation ID.

--applied FILE: the operation took effect. Repeats of the request get the response
in FILE ("-" reads standard input). FILE is
  {"status":201,"headers":{"Content-Type":["application/json"]},"body":"…"}
with body_base64 in place of body if it is not text. FILE may have the headers that
services replay. These are Content-Type, -Language, -Encoding, -Disposition,
Location, ETag, and those of --allow-header, if the service replays them too.

The status tells the transport. 200 to 599 are HTTP, and 0 to 16 are gRPC codes. It
must fit the record's route. /package.Service/Method is gRPC. /Service/Method with
two plain words can be either (/v1/payments). Any other route is HTTP. If a route
looks wrong, give --transport http or grpc.

For gRPC code 0 (OK) give body_base64, the protobuf message in its binary form. It
may be left out for an empty message. Also give message_type, the full name of the
message, if the service has no generated code for the method. For any other code,
body is the text of the status. The headers are metadata (content-language, etag,
location). Values of names with -bin at the end are base64, all others printable
ASCII.

If the services encrypt stored responses, --applied needs --response-keys. Without
the keys it is refused (exit code 1), because the services could not read a plain
response.

--not-applied: the operation did NOT take effect. This is a promise. The effect has
not happened AND CAN NO LONGER HAPPEN. The operation may run again from then on. It
would be executed twice if the first attempt is only late: in a queue, in a
suspended process, at a partner who answers tomorrow. If you cannot exclude that,
leave it open.

The decision is about the attempt that is open when idemctl looks, and never about a
later one. If you looked the attempt up before, give --attempt N with the number
from "record show" or "record list", because the key may have run again meanwhile.

A running attempt is not overruled, because idemctl takes the lock of the key first.
The lock is in ZooKeeper if --zookeeper names the ensemble of the attempt's lock
domain, and in Redis if the domain belongs to Redis's locks. The attempt of a joined
transaction has no lock, and is over unless a transaction holds its key. Without the
lock an unknown outcome can be settled, with a message on standard error. A pending
one cannot. If the domain was retired, the lock is in the ensemble that the services use
now. Give --zookeeper, or --no-zookeeper if they use only Redis's locks. With
--durable-markers the key's marker is changed with the record. The first to settle
wins: the next request, a resolver or an operator.

The response is kept and the key remembered for as long as the route does, which the
record says, or as --result-ttl and --key-ttl say if that is longer.

Prints the record like "record show". Exits with 75 if there is no record, its lock
is held, it is settled already, or an attempt other than N is open. Exits with 2 if
FILE is wrong. In all these cases nothing was changed.`,
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
			if err := c.readVerdict(cmd, &v, &who); err != nil {
				return err
			}
			return c.settle(cmd.Context(), id, &v)
		},
	}
	which.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&v.applied, "applied", "", "the operation took effect; repeats get the response in `FILE`")
	f.BoolVar(&v.notApplied, "not-applied", false, "the operation has not taken effect and no longer can")
	who.Flags(cmd)
	f.StringSliceVar(&v.allow, "allow-header", nil, "`NAME` of another header that the service replays")
	f.StringVar(&v.transport, "transport", "", "http or grpc, if the route looks like the other one")
	f.Uint32Var(&v.attempt, "attempt", 0, "decide only if attempt `N` is the open one (default: any)")
	servers.NoZooKeeper(cmd, &v.noZooKeeper)
	f.BoolVar(&v.marking, "durable-markers", false, "also change the key's durable marker, if the services leave markers in ZooKeeper")
	f.DurationVar(&v.resultTTL, "result-ttl", idem.DefaultResultTTL, "how long to keep the response, if the record does not say longer")
	f.DurationVar(&v.keyTTL, "key-ttl", idem.DefaultKeyTTL, "how long to remember the key, if neither the record nor --result-ttl says longer")
	return cmd
}

// readVerdict reads flags and FILE, before idemctl connects to a server.
func (c *decisions) readVerdict(cmd *cobra.Command, v *verdict, who *cli.Author) (err error) {
	applied := cmd.Flags().Changed("applied")
	v.timed = cmd.Flags().Changed("key-ttl")
	switch {
	case applied == v.notApplied:
		return cli.WrongUse("record resolve wants either --applied FILE or --not-applied")
	case v.resultTTL <= 0 || v.keyTTL <= 0:
		return cli.WrongUse("--result-ttl or --key-ttl is not positive")
	case cmd.Flags().Changed("attempt") && v.attempt == 0:
		return cli.WrongUse("--attempt 0: attempts count from 1")
	case cmd.Flags().Changed("transport") && !slices.Contains([]operate.Transport{operate.OverHTTP, operate.OverGRPC}, operate.Transport(v.transport)):
		return cli.WrongUse("--transport %q is neither http nor grpc", v.transport)
	case v.noZooKeeper && c.servers.ZooKeeper.Servers != "":
		return servers.ErrBothWays
	}
	for _, name := range v.allow {
		if !answer.IsHeaderName(name) {
			return cli.WrongUse("--allow-header %q is not the name of a header", name)
		}
	}
	if v.decision, err = who.Decision(cmd); err != nil || !applied {
		return err
	}
	v.answer, err = answer.Read(v.applied, c.print.io)
	return err
}

// response is the response for repeats, nil if the attempt was not applied.
func (v *verdict) response(rec *driver.Record) (*idem.Response, error) {
	if v.answer == nil {
		return nil, nil //nolint:nilnil // not applied
	}
	resp, err := v.answer.Response(rec.Route, operate.Transport(v.transport), v.allow)
	if err != nil {
		return nil, cli.UsageError{Err: fmt.Errorf("--applied: %w", err)}
	}
	return &resp, nil
}

func (c *decisions) settle(ctx context.Context, id driver.KeyID, v *verdict) error {
	b, err := c.servers.Open(ctx, servers.Need{})
	if err != nil {
		return err
	}
	defer b.Close()
	rec, err := b.Store.Get(ctx, id)
	switch {
	case err != nil && !errors.Is(err, sealed.ErrUnreadable): // rec is good without its response
		return err
	case rec.State == driver.StateNone:
		return noRecord(id)
	case !rec.State.Open() || v.attempt != 0 && v.attempt != rec.Attempt.Number:
		return notOpen(id, &rec, v.attempt)
	}
	if err := c.checkSealed(ctx, b.Store, &rec, v); err != nil {
		return err
	}
	if rec.KeyTTL == 0 && !v.timed {
		fmt.Fprintf(c.print.io.Err, "idemctl: an earlier version began this attempt, so the record does not say how long its route remembers the key; "+
			"it is remembered for %v, and a request with it after that runs again: give --key-ttl if the route's is longer\n", v.keyTTL)
	}
	if rec, err = c.decide(ctx, b, id, &rec, v); err != nil {
		return err
	}
	return c.print.record(&operate.Facts{OpenRecord: driver.OpenRecord{ID: id, Record: rec}, Now: rec.Since()}, nil, false)
}

// checkSealed refuses to store a plain response if the services encrypt theirs.
func (c *decisions) checkSealed(ctx context.Context, store servers.Store, rec *driver.Record, v *verdict) error {
	if v.answer == nil || c.servers.Responses.Keys() {
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
		return errSealed
	}
	return nil
}

var errSealed = errors.New("the services encrypt stored responses and could not read a plain one: give --response-keys, or IDEMCTL_RESPONSE_KEYS")

// settledError is [cli.ErrNothing] in words of its own. Its text says what became of the attempt.
type settledError struct{ text string }

func (e settledError) Error() string { return e.text }
func (settledError) Unwrap() error   { return cli.ErrNothing }

// notOpen means that the given attempt is not open, or for 0 that no attempt is.
func notOpen(id driver.KeyID, rec *driver.Record, attempt uint32) error {
	since := rec.Since().UTC().Format(time.RFC3339)
	if rec.State.Open() {
		return settledError{fmt.Sprintf("attempt %d of key ID %s is not open: attempt %d is, and has been %v since %s",
			attempt, id, rec.Attempt.Number, rec.State, since)}
	}
	by := ""
	if rec.Decision.By != "" {
		by = " by " + operate.OneLine(rec.Decision.By)
	}
	settled := ""
	if rec.Attempt.Number > 0 {
		settled = fmt.Sprintf("attempt %d was settled already, and ", rec.Attempt.Number)
	}
	return settledError{fmt.Sprintf("key ID %s has no open attempt: %sthe record is %v%s since %s; nothing was changed", id, settled, rec.State, by, since)}
}

// settledElsewhere reads who settled the attempt first.
func settledElsewhere(ctx context.Context, store driver.Store, id driver.KeyID, attempt uint32) error {
	rec, err := store.Get(ctx, id)
	if err != nil && !errors.Is(err, sealed.ErrUnreadable) {
		return settledError{"it was settled meanwhile, and the record cannot be read: " + err.Error()}
	}
	return notOpen(id, &rec, attempt)
}
