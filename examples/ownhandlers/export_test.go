package ownhandlers

// Database is for the tests outside of the package.
var Database = setupOn
