// Package sqllocks has what package lock/sql and a store that takes its locks have to agree on.
package sqllocks

import "database/sql"

// Space is the LockSpace of a locker and of a store. Two that are equal are the same place.
type Space struct {
	DB             *sql.DB
	Schema, Prefix string // of the tables
}
