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

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

// Load returns the script that consists of the named files, one after the other. It
// panics if a file is missing, so call it for package variables.
func Load(files fs.FS, names ...string) *goredis.Script {
	var text strings.Builder
	for _, name := range names {
		data, err := fs.ReadFile(files, name)
		if err != nil {
			panic("redisscript: " + err.Error())
		}
		text.Write(data)
	}
	return goredis.NewScript(text.String())
}

// EvalSha returns the command that runs a script by its hash, and does not send it. A
// server without the script answers with an error that begins with NOSCRIPT.
func EvalSha(ctx context.Context, script *goredis.Script, keys []string, args []any) *goredis.Cmd {
	all := make([]any, 0, 3+len(keys)+len(args))
	all = append(all, "evalsha", script.Hash(), len(keys))
	for _, key := range keys {
		all = append(all, key)
	}
	cmd := goredis.NewCmd(ctx, append(all, args...)...)
	cmd.SetFirstKeyPos(3) // the client of a cluster goes by the first key
	return cmd
}

// Call is one run of a script.
type Call struct {
	Keys []string
	Args []any
}

// Pipelined runs a script once per call in one pipeline. It returns the answers in
// the order of the calls, and each answer has its own error. A server that does not
// know the script gets its calls again in a second pipeline, with the text.
//
// The function after may be nil. It appends commands to each pipeline.
func Pipelined(ctx context.Context, client goredis.Cmdable, script *goredis.Script, calls []Call, after func(goredis.Pipeliner)) []*goredis.Cmd {
	answers := make([]*goredis.Cmd, len(calls))
	send := func(eval func(context.Context, goredis.Scripter, []string, ...any) *goredis.Cmd, which []int) {
		pipe := client.Pipeline()
		for _, i := range which {
			answers[i] = eval(ctx, pipe, calls[i].Keys, calls[i].Args...)
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
	send(script.EvalSha, all)
	for i, answer := range answers {
		if goredis.HasErrorPrefix(answer.Err(), "NOSCRIPT") {
			unknown = append(unknown, i)
		}
	}
	if len(unknown) > 0 {
		send(script.Eval, unknown)
	}
	return answers
}
