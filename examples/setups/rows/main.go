// Package main is a service on PostgreSQL that calls a bank. Locks and records are rows of its database, and no transaction is open
// while the bank is called.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"strings"

	"github.com/gin-gonic/gin"
	_ "github.com/jackc/pgx/v5/stdlib"

	idemsql "github.com/idemkeeper/idemkeeper/engine/sql"
	"github.com/idemkeeper/idemkeeper/idem"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

func main() {
	ctx := context.Background()
	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	engine, err := idemsql.New(ctx, db, dialect.PostgreSQL)
	if err != nil {
		log.Fatal(err)
	}
	b := bank{os.Getenv("BANK_URL")}
	policy := idem.Policy{
		Scope:   idem.ScopeFrom("merchant"),
		InDoubt: idem.AskResolver(b.lookUp), // or idem.RunAgain(), if the bank charges once for the same key
	}
	r := gin.Default()
	r.Use(func(c *gin.Context) { c.Set("merchant", "demo") }) // your authentication
	r.POST("/payments", idemgin.MustNew(engine, policy), b.createPayment)
	log.Fatal(r.Run("127.0.0.1:8080"))
}

type bank struct{ url string }

func (b bank) createPayment(c *gin.Context) {
	ctx := c.Request.Context() // the middleware's, not c
	payment, _ := idem.FromContext(ctx)
	key, err := idem.DownstreamKey(ctx, "charge") // the same at each attempt
	if err == nil {
		_, err = idem.CheckOwner(ctx) // the lock may have timed out while the process was paused
	}
	if err != nil {
		c.Status(http.StatusServiceUnavailable) // nothing was sent
		return
	}
	body := fmt.Sprintf(`{"reference":%q,"amount":1250}`, payment.OperationID)
	id, err := b.ask(ctx, http.MethodPost, "/charges", key, body)
	if err != nil {
		log.Print(err)
		c.Status(http.StatusBadGateway) // the resolver is asked at once, and the client gets this only if it does not know
		return
	}
	c.Data(http.StatusCreated, "application/json", answer(id))
}

// lookUp tells what became of a charge whose answer was lost. A charge that the bank does not know may still be on its way.
func (b bank) lookUp(ctx context.Context, in idem.Interrupted) (idem.Resolution, error) {
	id, err := b.ask(ctx, http.MethodGet, "/charges/"+in.OperationID, "", "")
	if err != nil {
		return idem.StillUnknown(), err
	}
	return idem.Applied(idem.Response{Status: http.StatusCreated, Header: http.Header{"Content-Type": {"application/json"}}, Body: answer(id)}), nil
}

func answer(id string) []byte { return fmt.Appendf(nil, `{"id":%q,"status":"succeeded"}`, id) }

func (b bank) ask(ctx context.Context, method, path, key, body string) (id string, err error) {
	req, err := http.NewRequestWithContext(ctx, method, b.url+path, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Idempotency-Key", key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	var charge struct{ ID string }
	if err := json.NewDecoder(resp.Body).Decode(&charge); err != nil || resp.StatusCode >= 300 {
		return "", fmt.Errorf("the bank answers %s: %w", resp.Status, err)
	}
	return charge.ID, nil
}
