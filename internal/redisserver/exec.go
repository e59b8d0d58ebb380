package redisserver

import (
	"context"

	goredis "github.com/redis/go-redis/v9"
)

// Exec sends a pipeline. Each command then has its own answer or error. The client leaves
// the commands without an error if a server refuses a new connection, for example because
// the password is wrong. They would look as if the server had answered with nothing, so
// Exec gives that error to all of them.
func Exec(ctx context.Context, pipe goredis.Pipeliner) {
	cmds, err := pipe.Exec(ctx)
	if err == nil {
		return
	}
	for _, cmd := range cmds {
		if cmd.Err() != nil {
			return
		}
	}
	for _, cmd := range cmds {
		cmd.SetErr(err)
	}
}
