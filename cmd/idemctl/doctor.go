package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
)

// Bounds of the checks. All of them share the first one, so that doctor is done
// within 15 s, the end of its session included.
const (
	allChecks      = 13 * time.Second
	endOfSession   = time.Second
	redisChecks    = 5 * time.Second // of all servers, side by side
	ensembleChecks = 9 * time.Second // beside them; of these
	serverCheck    = 2 * time.Second // for one question to a ZooKeeper server
	sessionCheck   = 6 * time.Second // until a session works
	recordChecks   = 4 * time.Second
)

// maxSkew between two clocks is no reason to warn.
const maxSkew = 2 * time.Second

// finding is the result of a check.
type finding struct {
	Check  string `json:"check"`
	Status string `json:"status"`
	Detail string `json:"detail"`
}

// report collects findings. The zero value is empty.
type report struct{ findings []finding }

func (r *report) okf(check, format string, args ...any)   { r.add("ok", check, format, args) }
func (r *report) warnf(check, format string, args ...any) { r.add("warn", check, format, args) }
func (r *report) failf(check, format string, args ...any) { r.add("fail", check, format, args) }

func (r *report) add(status, check, format string, args []any) {
	detail := strings.Join(strings.Fields(printable(fmt.Sprintf(format, args...))), " ")
	r.findings = append(r.findings, finding{check, status, passwords.ReplaceAllString(detail, "//***@")})
}

// passwords are what stands before the host of a URL.
var passwords = regexp.MustCompile(`//[^/\s]*@`)

// grade is ok, or warn where something is not as it should be.
func (r *report) gradef(good bool, check, format string, args ...any) {
	if good {
		r.okf(check, format, args...)
	} else {
		r.warnf(check, format, args...)
	}
}

func (a *app) doctor() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Check servers, settings, clocks and open records",
		Long: `Check what the flags name: the Redis servers, the ZooKeeper ensemble, and with
both what they have to do with each other. A line for each check,

  ok|warn|fail  NAME  text

with --json an object with check, status and detail. It takes 15 s at most, and
exits with 1 where a check failed, with 0 where there are warnings only.

  redis               a server that can be reached
  redis-version       6.2 or later
  redis-eviction      maxmemory-policy noeviction, or records are lost; a replica's
                      is a warning
  redis-persistence   an append-only file
  redis-replicas      how many there are, and how far behind
  redis-write         each shard can be written to
  sentinel            a sentinel that can be reached, and knows the primary
  zookeeper           a server that can be reached, and serves
  zookeeper-version   as it tells by the four letters srvr
  zookeeper-servers   three or five, so that one may fail
  zookeeper-session   the time-out that is granted for --session-timeout
  zookeeper-write     the quorum takes a write, and services have been there
  zookeeper-acl       znodes below which anybody may unlock
  lock-domain         of the ensemble; see "store retire"
  clock-skew          Redis, its replicas, ZooKeeper and this machine, within 2 s
  incarnations        Redis has the records that the services remember
  open-records        pending for more than an hour; unknown
  record-domains      open records of lock domains that are none of these

It leaves nothing behind: it writes a key to each shard of Redis that is gone a
second later, and znodes to ZooKeeper that go with its sessions. Where no service
has used an ensemble yet, nothing is made there: it says so with a warning.

Where znodes are made for the services alone, it needs --zookeeper-auth as they do;
without, what is closed to strangers is a warning, and is not looked at.`,
		Example: `  idemctl --redis redis://127.0.0.1:6379 --zookeeper zk1:2181,zk2:2181,zk3:2181/payments doctor
  idemctl --redis redis+sentinel://s1:26379,s2:26379/mymaster --json doctor`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.examine(cmd.Context()) },
	}
}

// errUnwell says that a check failed.
var errUnwell = errors.New("doctor: at least one check failed")

// patient is what the checks know of the servers: nil where one did not answer.
type patient struct {
	redis     goredis.UniversalClient
	zookeeper *zookeeper.Client
	clocks    []clockReading
}

func (a *app) examine(ctx context.Context) error {
	if a.redis == "" && a.zookeeper == "" {
		return wrongUse("doctor needs --redis or --zookeeper")
	}
	var client goredis.UniversalClient
	if a.redis != "" {
		var err error
		if client, err = a.connectRedis(); err != nil {
			return err
		}
		defer func() { _ = client.Close() }()
	}
	var servers []string
	var chroot string
	if a.zookeeper != "" {
		var err error
		if servers, chroot, err = a.ensemble(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, allChecks)
	defer cancel()
	var redis, ensemble, together report
	var p patient
	var redisClocks, ensembleClocks []clockReading
	var wg sync.WaitGroup
	if client != nil {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, redisChecks)
			defer cancel()
			if redisClocks = a.checkRedis(ctx, &redis, client); redisClocks != nil {
				p.redis = client
			}
		})
	}
	if servers != nil {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, ensembleChecks)
			defer cancel()
			p.zookeeper, ensembleClocks = a.checkZooKeeper(ctx, &ensemble, servers, chroot)
		})
	}
	wg.Wait()
	defer a.endSession(p.zookeeper)
	p.clocks = slices.Concat(redisClocks, ensembleClocks)
	a.checkTogether(ctx, &together, &p)
	return a.writeFindings(redis.findings, ensemble.findings, together.findings)
}

// writeFindings prints all lines, and is errUnwell where one is a failure.
func (a *app) writeFindings(groups ...[]finding) error {
	failed := false
	for _, group := range groups {
		for _, f := range group {
			failed = failed || f.Status == "fail"
			var err error
			if a.json {
				err = writeJSON(a.stdout, f)
			} else {
				_, err = fmt.Fprintf(a.stdout, "%-4s  %-17s  %s\n", f.Status, f.Check, f.Detail)
			}
			if err != nil {
				return err
			}
		}
	}
	if failed {
		return errUnwell
	}
	return nil
}

// endSession closes the session of the checks.
func (a *app) endSession(client *zookeeper.Client) {
	if client == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), endOfSession)
	defer cancel()
	_ = client.Close(ctx) // at the worst the session times out
}

// discard is for what comes back as a finding.
var discard = slog.New(slog.DiscardHandler)
