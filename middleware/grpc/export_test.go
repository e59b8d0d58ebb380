package idemgrpc

// AppendCanonical is for the tests of package idemgrpc_test.
var AppendCanonical = appendCanonical
