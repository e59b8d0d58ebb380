package sqllock

import (
	"context"
	"database/sql"
	"strings"
)

// names writes the names of the tables into SQL.
type names struct {
	kind   *kind
	schema string // "" is that of the connection
	prefix string
}

// find completes the names by the schema of the tables. Others who use a pool may leave another search_path or
// default database in a session.
func (n *names) find(ctx context.Context, db *sql.DB) (err error) {
	if n.schema == "" {
		n.schema, err = n.kind.Home(ctx, db, n.prefix+"locks")
	}
	return err
}

// sql returns a statement for the database. In the text {locks} and {domain} are the tables, {returned} ends
// a statement that takes a lock, {earliest} and {latest} are the time, and the rest is that of sqldialect.Dialect.Statement.
func (n names) sql(text string) string {
	returned := ""
	if n.kind.returning {
		fence := "fence"
		if n.kind.Durably != nil {
			fence = n.kind.Durably(fence)
		}
		returned = " RETURNING " + fence + ", domain"
	}
	return n.kind.Statement(strings.NewReplacer("{locks}", n.kind.Table(n.schema, n.prefix+"locks"),
		"{domain}", n.kind.Table(n.schema, n.prefix+"lock_domain"), "{returned}", returned,
		"{earliest}", n.kind.Earliest, "{latest}", n.kind.Latest).Replace(text))
}

// texts are the statements, made once.
type texts struct {
	insert, takeOver, look, shorten, renew, release string
	domain, domainOf, makeDomain, raise             string
	due, ping                                       string
}

func newTexts(n names) texts {
	return texts{
		// A row that is there is left to takeOver. So no row is locked or written for a caller that finds the lock taken.
		insert: n.sql("INSERT INTO {locks} (k, owner, domain, fence, nonce, holder, ttl, expires)" +
			" SELECT ?, ?, d.domain, greatest({alone:{latest}}, d.fence + 1), ?, ?, ?, {latest} + ? FROM {domain} AS d WHERE d.id = 1 {once}{returned}"),
		look: n.sql("SELECT {earliest}, owner, domain, fence, nonce, holder, ttl, expires FROM {locks} WHERE k = ?"),
		// The fence is the version of the row, because each owner has a greater one.
		takeOver: n.sql("UPDATE {locks} SET owner = ?, fence = greatest({latest}, fence + 1), nonce = ?, holder = ?, ttl = ?, expires = {latest} + ?" +
			" WHERE k = ? AND fence = ? AND (owner IS NULL OR expires <= {earliest}){alone}{returned}"),
		// If the clock was set back, a lock would outlive its time to live by as much. Its owner has trusted it for less,
		// because no renewal was sent later than now.
		shorten: n.sql("UPDATE {locks} SET expires = {latest} + ttl WHERE k = ? AND fence = ? AND owner IS NOT NULL AND expires > {latest} + ttl{alone}"),
		renew:   n.sql("UPDATE {locks} SET expires = {latest} + ttl WHERE k = ? AND owner = ?{alone}"),
		release: n.sql("UPDATE {locks} SET owner = NULL, expires = {latest} WHERE k = ? AND owner = ?{alone}"),

		domain:     n.sql("SELECT fence FROM {domain} WHERE id = 1"),
		domainOf:   n.sql("SELECT coalesce((SELECT domain FROM {locks} WHERE k = ?), (SELECT domain FROM {domain} WHERE id = 1), '')"),
		makeDomain: n.sql("INSERT INTO {domain} (id, domain, fence) VALUES (1, ?, {alone:0}) {once}{durable}"),
		raise:      n.sql("UPDATE {domain} SET fence = ? WHERE id = 1 AND fence < ?{alone}{durable}"),
		due:        n.sql("SELECT k, fence FROM {locks} WHERE expires <= {indexed} - ? ORDER BY expires LIMIT ?"),
		// This changes nothing, and a standby or a read-only session refuses it.
		ping: n.sql("UPDATE {domain} SET fence = fence WHERE id < 0"),
	}
}
