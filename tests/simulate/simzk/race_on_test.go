//go:build race

package simzk

const raceEnabled = true
