// Package console is a web page for operators. A service mounts it as an [net/http.Handler]:
//
//	authorise := func(r *http.Request) (console.Operator, error) { … }
//	page := console.MustNew(engine, authorise, console.Config{Policies: policies})
//	mux.Handle("/console/", http.StripPrefix("/console", page))
//
// With Policies it tells what happens next with a record. [New] is MustNew with an error in
// place of a panic. [BasicAuth] makes an [Authorise] for a few names and passwords.
//
// It finds a key by its text and scope, its operation ID or its key ID. It lists the open records,
// oldest first, with the attempts, the fences, whether the holder lives, the response that was on
// its way and what the resolver said. It tells the story of one key. A person who may do so
// settles an outcome in doubt there. Give [Config].ScopeHint, so that an operator knows what a scope
// is in your service. A strip shows the health of the lock service, the store, the lock domains,
// the replicas and the sweeper.
//
// # What the operation did
//
// [Config].LookUp asks your ledger, your bank or your queue about an operation. The page of an open
// record begins with the result:
//
//   - The operation was found ([Found].Says). So it took effect, and repeats get the answer that was
//     found. The operator compares it with the order, gives a reason and settles it. If a part of
//     the answer is missing, the operator enters it.
//   - Nothing was found ([Found].Nothing). That is no proof, and the page says why. An operation that
//     is released too early happens twice. An operator who found it elsewhere enters its answer.
//   - The look-up cannot tell. The operator looks as [Found].More says.
//   - The look-up failed. The page tells why, and only "it took effect" can be settled.
//
// The operation is looked up once more when it is settled. If it was found, "it did not take effect" is
// refused, and so is an answer other than the one that was found. "It did not take effect" is refused, too, if
// that look-up fails: a retry would meet the same ledger, so nobody gains by haste. For all that the
// console refuses, idemctl record resolve remains, which looks nothing up.
//
// A look-up has 5 seconds. At most eight run at the same time, and eight more for lists and runs. A panic counts as an error. Only
// operators who may settle cause one, and see what it found.
//
// # Who may do what
//
// New refuses to make a console without an [Authorise], which sees every request. It names the
// operator and says whether that operator may settle, and may see stored responses. By default an
// operator only reads, and sees of a response the status, the size and the names of its headers.
// Authorise also sees the method and the path. So a service can ask for a fresh sign-in before a
// POST to a path that ends in /settle, and a stolen session settles nothing.
//
// Raw keys are stored nowhere, so the console cannot show them. A search by key sends the key in
// the body of a POST, so that it is in no URL, log or history.
//
// An operator with a name and a password (HTTP basic authentication) can sign out on each page. A
// session of your own sign-in ends where it began, and [Config].Home leads there.
//
// # How a decision is made
//
// Each outcome has its own form, and the operator opens one. The operator gives a reason, and types
// the last characters of the operation ID. The word "again" comes before them if the next request
// is to run the handler again, and the word "done" if the operation took effect and was not found. After "it took effect" the answer has a status from 200 to 399,
// because a client that was charged must not be told that it was not. So the failure that was on
// its way is no answer either. One that says it is JSON and is not is refused. The form carries the attempt that the operator has seen: number,
// fence and nonce. The engine takes the lock of the key, so it does not overrule a holder that
// runs, and settles that attempt by compare-and-set. If the record has changed while the operator
// was reading, nothing is settled, and the page tells who settled the attempt and when. The name of
// the operator comes from Authorise and never from the form. In joined mode there is no lock, and
// the store tells whether a transaction holds the key.
//
// # Settling many
//
// After an incident thousands of outcomes may be in doubt. The list is filtered by route, by the time at which the
// attempt began, and by the answer that was kept. An operator ticks records, or takes all on a page or all that the
// filter selects, at most the 20,000 oldest. One page names their number and their routes, and asks for the decision, a
// reason and a confirmation:
//
//   - They took effect, and repeats get the answer that the look-up finds for each, or the answer that is kept
//     with each record if its status is from 200 to 399, or one answer that the operator enters.
//   - They did not take effect.
//
// A run then settles them in the background, at most 200 a second. The rules are those of single decisions. Each
// record is read again, and its operation is looked up again, except for a kept answer. The attempt that was selected is settled
// under the lock of its key by compare-and-set. So two operators who select the same records, or a run that is started again,
// settle nothing twice. Each record ends as one of these: settled, already settled (the same decision stood
// before), changed since, locked, refused by the rules, failed (a server did not answer), or not tried. The page of the run shows
// the progress, can stop it, and has the results as CSV. A run over servers that fail ends by itself.
//
// The run does not need the browser. An instance has one run at a time, and refuses a second one until the first
// has ended. It keeps the selection of the second for 30 minutes. Selections and runs are in the memory of the instance. If
// that ends, the settled records stay settled, the others are still in the list, and the log has every
// decision. [Console.Close] stops a run. Behind a proxy with several instances, let an operator's requests go to the same
// instance. Otherwise the page of a run loads again until it reaches that instance.
//
// # Against attacks
//
// Every POST has to come from a page of the console. [net/http.CrossOriginProtection] refuses
// requests from other origins, and each form but that of the sign-out has a token that is bound to the operator. Tokens are
// made with a random key of the instance, or with [Config].TokenKey if several instances share one
// address. Pages run no inline script and no inline style, cannot be framed, and are not cached
// (Content-Security-Policy, Cache-Control). Stored text is escaped, and unprintable characters are
// shown as escapes.
//
// The errors of lock service and store go to the log, and a page only names their kind. What a
// resolver or a look-up said is shown as it is, so neither may put secrets into its errors.
//
// # What it costs
//
// One page reads one page of open records and one lock for each row of it. A list costs up to 25 look-ups, and the page
// of a record that can be settled one. The strip counts up to
// 20,000 open records within two seconds, at most every few seconds. Nothing runs while nobody looks, except
// [Console.Observe], which keeps the latest events in memory, and a run over many records.
package console
