// Package schema describes the tables for Ent.
package schema

import (
	"entgo.io/ent"
	"entgo.io/ent/schema/field"
)

// Payment is a row of the table payments. Its ID is the operation ID.
type Payment struct{ ent.Schema }

// Fields of a payment.
func (Payment) Fields() []ent.Field {
	return []ent.Field{
		field.String("id").NotEmpty().Immutable(),
		field.String("payer").NotEmpty(),
		field.Int64("amount").Positive(),
	}
}
