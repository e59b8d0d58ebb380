// Package redisscript loads the Lua scripts of a package and runs them.
//
// Each script is an embedded .lua file. Its header names its KEYS, its ARGV and what
// it returns. Redis knows a script by the hash of its text, so instances of two
// builds never run each other's scripts.
package redisscript

import (
	"context"
	"io/fs"
	"strings"
	"sync"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

// Load returns the script that consists of the named files, one after the other. It
// panics if a file is missing, so call it for package variables.
func Load(files fs.FS, names ...string) *goredis.Script { return New(Text(files, names...)) }

// New returns the script that consists of texts, one after the other.
func New(texts ...string) *goredis.Script { return goredis.NewScript(strings.Join(texts, "")) }

// Text returns the text of the named files, one after the other. It panics if a file is missing.
func Text(files fs.FS, names ...string) string {
	var text strings.Builder
	for _, name := range names {
		data, err := fs.ReadFile(files, name)
		if err != nil {
			panic("redisscript: " + err.Error())
		}
		text.Write(data)
	}
	return text.String()
}

// Call is one run of a script. Do not change its texts before it has its answer.
type Call struct {
	Keys []string
	Args []string
}

// FirstKey is the position of the first key in [EvalSha]. The client of a cluster goes by it.
const FirstKey = 3

// EvalSha returns the command EVALSHA, which runs a script by its hash. It points to the texts of
// the call, because each text in an interface would be an allocation. After some answers the
// call has to be sent again, see [MustResend].
func EvalSha(script *goredis.Script, c Call) []any {
	cmd := make([]any, 0, FirstKey+len(c.Keys)+len(c.Args))
	cmd = append(cmd, "evalsha", script.Hash(), len(c.Keys))
	for i := range c.Keys {
		cmd = append(cmd, &c.Keys[i])
	}
	for i := range c.Args {
		cmd = append(cmd, &c.Args[i])
	}
	return cmd
}

// MustResend reports whether the script has to be sent again by [Resend], after this answer to
// [EvalSha] in a shared pipeline. The script has written nothing then.
//
//   - NOSCRIPT: the server does not know the script.
//   - READONLY: a fail-over has made the server a replica. The client then closes the connection and
//     opens another one, which may lead to the new primary. In a pipeline it does so only if the first
//     command has this answer (pipelineReadCmds in the source of go-redis 9.23).
func MustResend(err error) bool {
	return err != nil && (goredis.HasErrorPrefix(err, "NOSCRIPT") || goredis.HasErrorPrefix(err, "READONLY"))
}

// Resend sends a script alone and with its text. If the client panics, for example in a hook, the panic is
// the error of the answer. Many scripts are sent in the background, where a panic would end the process.
func Resend(ctx context.Context, client goredis.UniversalClient, script *goredis.Script, c Call) (cmd *goredis.Cmd) {
	cmd = goredis.NewCmd(ctx)
	defer func() { redisserver.FailAll([]goredis.Cmder{cmd}, recover()) }()
	return Eval(ctx, client, script, c)
}

// Eval sends a script with its text, or adds it to a pipeline.
func Eval(ctx context.Context, client goredis.Scripter, script *goredis.Script, c Call) *goredis.Cmd {
	args := make([]any, len(c.Args))
	for i, arg := range c.Args {
		args[i] = arg
	}
	return script.Eval(ctx, client, c.Keys, args...)
}

// Pipelined runs a script once per call in one pipeline. It returns the answers in
// the order of the calls, and each answer has its own error. A server that does not
// know the script gets its calls again in a second pipeline, with the text.
//
// In a cluster each server has a pipeline of its own. If one of them does not answer in time,
// go-redis 9.23 gives the error to all commands of a pipeline, also to those that other servers
// have answered (processPipeline in its osscluster.go).
//
// The function after may be nil. It appends commands to each pipeline.
func Pipelined(ctx context.Context, client goredis.Cmdable, script *goredis.Script, calls []Call, after func(goredis.Pipeliner)) []*goredis.Cmd {
	cluster, ok := client.(*goredis.ClusterClient)
	if !ok {
		return pipelined(ctx, client, script, calls, after)
	}
	servers := make(map[string][]int) // the calls of each
	for i, c := range calls {
		addr := ""
		if node, err := cluster.MasterForKey(ctx, c.Keys[0]); err == nil {
			addr = node.Options().Addr
		}
		servers[addr] = append(servers[addr], i)
	}
	answers := make([]*goredis.Cmd, len(calls))
	var wg sync.WaitGroup
	for _, which := range servers {
		wg.Go(func() {
			its := make([]Call, len(which))
			for n, i := range which {
				its[n] = calls[i]
			}
			for n, answer := range pipelined(ctx, client, script, its, after) {
				answers[which[n]] = answer
			}
		})
	}
	wg.Wait()
	return answers
}

func pipelined(ctx context.Context, client goredis.Cmdable, script *goredis.Script, calls []Call, after func(goredis.Pipeliner)) []*goredis.Cmd {
	answers := make([]*goredis.Cmd, len(calls))
	send := func(eval func(goredis.Pipeliner, Call) *goredis.Cmd, which []int) {
		pipe := client.Pipeline()
		for _, i := range which {
			answers[i] = eval(pipe, calls[i])
		}
		if after != nil {
			after(pipe)
		}
		redisserver.Exec(ctx, pipe)
	}
	all, unknown := make([]int, len(calls)), []int(nil)
	for i := range all {
		all[i] = i
	}
	send(func(pipe goredis.Pipeliner, c Call) *goredis.Cmd {
		cmd := goredis.NewCmd(ctx, EvalSha(script, c)...)
		cmd.SetFirstKeyPos(FirstKey)
		_ = pipe.Process(ctx, cmd)
		return cmd
	}, all)
	for i, answer := range answers {
		if goredis.HasErrorPrefix(answer.Err(), "NOSCRIPT") {
			unknown = append(unknown, i)
		}
	}
	if len(unknown) > 0 {
		send(func(pipe goredis.Pipeliner, c Call) *goredis.Cmd { return Eval(ctx, pipe, script, c) }, unknown)
	}
	return answers
}
