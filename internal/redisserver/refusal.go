package redisserver

import (
	"errors"
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

// refusals are the answers of a server that refuses a command because of its own state. They say
// nothing about the command, and the command has had no effect. A script gets them in front of its first
// write.
var refusals = []string{"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "OOM", "MISCONF", "NOREPLICAS"}

// Refuses reports whether a server has refused a command because of its own state. The client may have sent
// the command before, and lost the answer. Redis 6 puts the refusal of a script behind words of its own.
func Refuses(err error) bool {
	var reply goredis.Error
	if !errors.As(err, &reply) {
		return false
	}
	text := reply.Error() + " "
	for _, state := range refusals {
		if strings.HasPrefix(text, state+" ") || strings.Contains(text, ": -"+state+" ") {
			return true
		}
	}
	return false
}

// Answered reports whether an error is a server's answer about the command itself.
func Answered(err error) bool {
	var reply goredis.Error
	return errors.As(err, &reply) && !Refuses(err)
}
