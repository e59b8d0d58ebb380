// Package operate has what idemctl and the operator's console share: what is known about a
// record, how it is told to a person, and which decisions of a person are accepted. Both tell
// the same story in the same words.
//
// [Looker] collects the [Facts] about a record, and [Facts.Story] puts them into words.
// author.go and answer.go check what a person enters.
package operate
