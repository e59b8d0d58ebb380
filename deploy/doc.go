// Package deploy holds what a team starts from in production: alert rules with their runbook, a
// dashboard, and the sample under Compose and Kubernetes. Its tests check every file against
// the formats and against the metrics that the sample really has.
package deploy
