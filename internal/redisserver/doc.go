// Package redisserver has what the token store and the locker have in common, the
// rules for a fit client and a fit server, and the shards of their keys.
package redisserver
